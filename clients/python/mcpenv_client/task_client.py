"""The tasks of the environment at a server, over HTTP: OpenEnv's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from .errors import InvalidMessage
from .types.tasks import Task
from .wire.faults import describe_faults, faults

PAGE = 500
"""The number of tasks per request."""

Ask = Callable[[str, Any], Awaitable[Any]]


class TaskClient:
    """The requests for tasks.

    Args:
        ask: sends a request: its path, and the JSON of its body or None for GET; returns the JSON of the answer.

    Raises (methods):
        InvalidMessage: the environment has no tasks, or none of that split and index; or the answer is no task.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._root: str | None = None

    async def splits(self) -> list[str]:
        """Return the names of the splits."""
        described = await self._ask(f"{await self._path()}/splits", None)
        return [split["name"] for split in _read("splits", list[dict[str, Any]], described)]

    async def size(self, split: str) -> int:
        """Return the number of tasks in a split."""
        answer = await self._ask(f"{await self._path()}/num_tasks", {"split": split})
        size: int = _read("num_tasks", int, answer.get("num_tasks") if isinstance(answer, dict) else answer)
        return size

    async def get(self, split: str, index: int) -> Task:
        """Return one task."""
        answer = await self._ask(f"{await self._path()}/task", {"split": split, "index": index})
        task: Task = _read("task", Task, answer.get("task") if isinstance(answer, dict) else answer)
        return task

    async def range(self, split: str, start: int, stop: int | None) -> list[Task]:
        """Return the tasks from ``start`` to ``stop``, exclusive; `PAGE` at a time."""
        size = await self.size(split)
        end = size if stop is None else min(stop, size)
        tasks: list[Task] = []
        path = f"{await self._path()}/task_range"
        for begin in range(start, end, PAGE):
            answer = await self._ask(path, {"split": split, "start": begin, "stop": min(begin + PAGE, end)})
            tasks += _read("tasks", list[Task], answer.get("tasks") if isinstance(answer, dict) else answer)
        return tasks

    async def _path(self) -> str:
        """Return the path with the environment's name."""
        if self._root is None:
            (name,) = _read("list_environments", tuple[str], await self._ask("/list_environments", None))
            self._root = f"/{quote(name, safe='')}"
        return self._root


def _read(what: str, kind: Any, data: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise InvalidMessage(f"the server's {what}: {describe_faults(error)}", errors=faults(error)) from error
