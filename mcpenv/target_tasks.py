"""Tasks of a target: those of a file, instead of the ones that its class has. The class itself stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .environment import MCPEnvironment
from .tasks import TaskSet


def with_tasks(made: Callable[..., Any], tasks: TaskSet) -> Callable[..., Any]:
    """A class or factory whose environments have these tasks; its parameters are those of ``made``."""
    if isinstance(made, type):
        return _derived(made, tasks)
    derived: dict[type, type] = {}

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        env = made(*args, **kwargs)
        if isinstance(env, MCPEnvironment):
            # Tasks are the class's, and which class it is, a factory says only by what it makes.
            cls = type(env)
            env.__class__ = derived.get(cls) or derived.setdefault(cls, _derived(cls, tasks))
        return env

    return make


def _derived(cls: type, tasks: TaskSet) -> type:
    """A subclass that differs in its tasks only."""
    same = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls)(cls.__name__, (cls,), {**same, "tasks": tasks})


__all__ = ["with_tasks"]
