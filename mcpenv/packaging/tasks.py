"""Tasks of a target: replace those of its class by others, without changing the class itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.tasks import TaskSet


def with_tasks(made: Callable[..., Any], tasks: TaskSet) -> Callable[..., Any]:
    """Return a class or factory like ``made``, with the same parameters, whose environments have these tasks."""
    if isinstance(made, type):
        return _derived(made, tasks)
    derived: dict[type, type] = {}

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        env = made(*args, **kwargs)
        if isinstance(env, MCPEnvironment):
            # Tasks belong to the class, and a factory's class is known only from an instance.
            cls = type(env)
            env.__class__ = derived.get(cls) or derived.setdefault(cls, _derived(cls, tasks))
        return env

    return make


def _derived(cls: type, tasks: TaskSet) -> type:
    """Return a subclass that differs only in its tasks."""
    same = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls)(cls.__name__, (cls,), {**same, "tasks": tasks})


__all__ = ["with_tasks"]
