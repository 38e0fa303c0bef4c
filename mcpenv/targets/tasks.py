"""Tasks of a target: replace those of its class by others, without changing the class itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcpenv.tasks import TaskSet

from .derived import with_attributes


def with_tasks(made: Callable[..., Any], tasks: TaskSet) -> Callable[..., Any]:
    """Return a class or factory like ``made``, with the same parameters, whose environments have these tasks."""
    return with_attributes(made, {"tasks": tasks})


__all__ = ["with_tasks"]
