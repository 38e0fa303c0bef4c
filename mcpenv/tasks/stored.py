"""Read tasks from rows. Every row is read and checked once, and then read again on demand."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from mcpenv.errors import InvalidTasks
from mcpenv_client.types.tasks import Task

from .columns import Columns, Row

VERSION_DIGITS = 16


class Rows(Protocol):
    """The rows of a source. Methods may be called from several threads at once."""

    def every(self) -> Iterator[Row]:
        """Yield every row in order. Called once, before `at`."""
        ...

    def at(self, number: int) -> Row:
        """Return the row of a 0-based number, in the order of `every`."""
        ...


class StoredTasks:
    """The tasks of rows. Only the id and a checksum of each are kept in memory.

    Raises (constructor):
        InvalidTasks: if a row is not a task, an id occurs twice, no row has a column of the mapping, or the rows
            cannot be read.
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
        columns.refuse_unseen()
        self.version = content.hexdigest()[:VERSION_DIGITS]
        self.sizes = {name: len(numbers) for name, numbers in self._splits.items()}

    def get(self, split: str, index: int) -> Task:
        """Return the task of an existing split and index.

        Raises:
            InvalidTasks: if its row has changed.
        """
        return self._task(self._splits[split][index])

    def find(self, task_id: str) -> Task | None:
        """Return the task with an id, or None."""
        number = self._numbers.get(task_id)
        return None if number is None else self._task(number)

    def like(self, task_id: str) -> Iterable[str]:
        """Return the ids."""
        return self._numbers

    def _task(self, number: int) -> Task:
        row = self._rows.at(number)
        task = self._columns.task(row, self._split)
        if zlib.crc32(text_of(task)) != self._checksums[number]:
            raise InvalidTasks(
                row.place, "the task has changed since it was first read. Restart to use the new content"
            )
        return task


class ListedRows:
    """The rows that a Python program gives, or a file that is read at once.

    Args:
        tasks: the rows.
        place: the words before the number of a row in errors.
    """

    def __init__(self, tasks: Iterable[Task | Mapping[str, Any]], place: str = "task") -> None:
        self._tasks = tasks
        self._place = place

    def every(self) -> Iterator[Row]:
        """Return every row. The iterable is stored in a list, because it may be iterable only once."""
        self._tasks = list(self._tasks)
        return map(self.at, range(len(self._tasks)))

    def at(self, number: int) -> Row:
        """Return a row by number."""
        assert isinstance(self._tasks, list)
        return Row(f"{self._place} {number}", self._tasks[number], index=number)


def text_of(task: Task) -> bytes:
    """Return a task as JSON text. Equal tasks have equal text."""
    return task.model_dump_json().encode()
