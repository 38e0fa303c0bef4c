"""Stored tasks: those that stand in rows somewhere. Every row is read once and checked; then each when it is wanted."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from mcpenv_client.tasks import Task

from ..errors import InvalidTasks
from .columns import Columns, Row

VERSION_DIGITS = 16


class Rows(Protocol):
    """Where rows stand. Methods may be called from several threads at once."""

    def every(self) -> Iterator[Row]:
        """Every row in order; called once, before `at`."""
        ...

    def at(self, number: int) -> Row:
        """The row that came as this one, counted from 0."""
        ...


class StoredTasks:
    """The tasks of rows. Of each only the id and a checksum are kept.

    Raises (constructor):
        InvalidTasks: a row is no task, an id is there twice, or the rows cannot be read.
    """

    def __init__(self, rows: Rows, columns: Columns, split: str | None = None) -> None:
        self._rows = rows
        self._columns = columns
        self._split = split
        self._checksums = array("L")
        self._numbers: dict[str, int] = {}
        self._splits: dict[str, array[int]] = {}
        content = hashlib.sha256()
        for number, row in enumerate(rows.every()):
            task = columns.task(row, split)
            first = self._numbers.setdefault(task.id, number)
            if first != number:
                place = rows.at(first).place
                raise InvalidTasks(row.place, f"{task.id!r} is the id of another task ({place})", field="id")
            text = text_of(task)
            content.update(text + b"\n")
            self._checksums.append(zlib.crc32(text))
            self._splits.setdefault(task.split, array("Q")).append(number)
        self.version = content.hexdigest()[:VERSION_DIGITS]
        self.sizes = {name: len(numbers) for name, numbers in self._splits.items()}

    def get(self, split: str, index: int) -> Task:
        """The task of a split and an index that are there.

        Raises:
            InvalidTasks: its row is no longer what it was.
        """
        return self._task(self._splits[split][index])

    def find(self, task_id: str) -> Task | None:
        """The task of an id, None if there is none."""
        number = self._numbers.get(task_id)
        return None if number is None else self._task(number)

    def _task(self, number: int) -> Task:
        row = self._rows.at(number)
        task = self._columns.task(row, self._split)
        if zlib.crc32(text_of(task)) != self._checksums[number]:
            raise InvalidTasks(row.place, "the task changed since it was first read; start again to use what is there")
        return task


class ListedRows:
    """Rows of a Python program."""

    def __init__(self, tasks: Iterable[Task | Mapping[str, Any]]) -> None:
        self._tasks = tasks

    def every(self) -> Iterator[Row]:
        """Every row. What can be gone through only once is kept."""
        self._tasks = list(self._tasks)
        return map(self.at, range(len(self._tasks)))

    def at(self, number: int) -> Row:
        """The row of a number."""
        assert isinstance(self._tasks, list)
        return Row(f"task {number}", self._tasks[number], index=number)


def text_of(task: Task) -> bytes:
    """A task as JSON text, by which two are the same."""
    return task.model_dump_json().encode()


__all__ = ["VERSION_DIGITS", "ListedRows", "Rows", "StoredTasks", "text_of"]
