"""Derive an environment's class from another: the same one with other class attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.tasks import TaskSet

from .manifest import Manifest


def with_attributes(made: Callable[..., Any], attributes: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a class or factory like ``made``, with the same parameters; its environments have these attributes."""
    if isinstance(made, type):
        return _derived(made, attributes)
    derived: dict[type, type] = {}

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        env = made(*args, **kwargs)
        if isinstance(env, MCPEnvironment):
            # The attributes are the class's, and a factory's class is known only from an instance.
            cls = type(env)
            env.__class__ = derived.get(cls) or derived.setdefault(cls, _derived(cls, attributes))
        return env

    return make


def with_tasks(made: Callable[..., Any], tasks: TaskSet) -> Callable[..., Any]:
    """Return a class or factory like ``made``, with the same parameters; its environments have these tasks."""
    return with_attributes(made, {"tasks": tasks})


def with_manifest(made: Callable[..., Any], manifest: Manifest) -> Callable[..., Any]:
    """Return a class or factory like ``made`` with the name, version and description of a manifest."""
    stated: dict[str, Any] = {"EXPOSED_NAME": manifest.name}
    if manifest.version is not None:
        stated["VERSION"] = manifest.version
    return with_attributes(made, stated if manifest.description is None else {**stated, _SUMMARY: manifest.description})


_SUMMARY = "__doc__"


def _derived(cls: type, attributes: Mapping[str, Any]) -> type:
    """Return a subclass that differs only in these attributes. Its docstring differs in the first line only."""
    same = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    given = dict(attributes)
    if _SUMMARY in given:
        _, newline, rest = (cls.__doc__ or "").lstrip().partition("\n")
        given[_SUMMARY] = f"{given[_SUMMARY]}{newline}{rest}"
    return type(cls)(cls.__name__, (cls,), {**same, **given})
