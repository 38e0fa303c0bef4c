"""A task set as the task routes ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..source import EnvironmentSource
from ..workers import THREADS
from .source import TaskRefusal
from .task_set import TaskSet

MAX_LISTED = 10_000
"""Tasks in one answer; more are asked for a range at a time."""


class ServedTasks:
    """Answers from a task set, in worker threads: files may be read, and a generator is its author's code.

    Args:
        source: whose environments have the tasks.
    """

    def __init__(self, source: EnvironmentSource) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._source.name

    async def answer(self, method: str, *arguments: Any) -> Any:
        """As `TaskSource.answer`."""
        tasks = self._source.tasks
        if tasks is None:
            raise TaskRefusal(501, "this environment has no tasks")
        return await THREADS.run(_ANSWERS[method], tasks, *arguments)


def _listed(tasks: TaskSet, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
    size = tasks.size(split)
    begin, end = start or 0, size if stop is None else min(stop, size)
    if begin < 0 or end < 0:
        raise TaskRefusal(400, "start and stop count from 0; there are no negative ones")
    if end - begin > MAX_LISTED:
        raise TaskRefusal(
            400, f"{split!r} has {size} tasks; ask for at most {MAX_LISTED} at a time, by start and stop of task_range"
        )
    return [_plain(tasks, split, index) for index in range(begin, end)]


def _plain(tasks: TaskSet, split: str, index: int) -> dict[str, Any]:
    return tasks.get(split, index).model_dump(mode="json")


_ANSWERS: dict[str, Callable[..., Any]] = {
    "list_splits": TaskSet.splits,
    "list_tasks": _listed,
    "num_tasks": TaskSet.size,
    "get_task": _plain,
    "get_task_range": _listed,
}

__all__ = ["MAX_LISTED", "ServedTasks"]
