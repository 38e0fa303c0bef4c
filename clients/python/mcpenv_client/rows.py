"""Rows of a trainer's dataset: one for each task of a split."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from .portal import Portal, in_daemon_thread
from .types.tasks import LABELS, Task

COLUMNS = ("task", "split", "index", "seed", "options")
"""The columns of a row that name an episode. Others are the trainer's own."""

PAGE = 100
"""The number of tasks that an iteration reads at once. A generator may take long for each."""

KEPT = 1000
"""The number of rows that stay in memory."""

LIKE_ALL: Mapping[str, Any] = {"split": "", "index": 0}
"""The columns of all `Rows` that decide about a reset: none has a seed."""

READING = Portal()
"""The event loop in which clients read rows, so that code in the loop of the blocking clients can wait for them."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of a split, read when they are used: a split may have a million tasks. A slice is not read either.

    An index reads one task, an iteration `PAGE` at a time. Both block, for a request if the tasks are on a server;
    ``async for`` does not. Rows are copies, and any thread may read them.

    Args:
        indices: the 0-based indices of the tasks in their split.
        read: returns the tasks from an index to another, exclusive. It may be called in any thread.
        split: the name of the split.

    Raises (all methods but `place_of`):
        WireError, ConnectionFailed: the tasks cannot be read.
    """

    def __init__(self, indices: range, read: Callable[[int, int], Sequence[Task]], split: str) -> None:
        self._indices = indices
        self._read = read
        self._split = split
        self._kept: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | Rows:
        if isinstance(at, slice):
            part = Rows(self._indices[at], self._read, self._split)
            part._kept = self._kept
            return part
        index = self._indices[at]
        return self._page(range(index, index + 1))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for wanted in self._pages():
            yield from self._page(wanted)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for wanted in self._pages():
            for row in await in_daemon_thread(self._page, wanted):
                yield row

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(dict.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def place_of(self, split: Any, index: Any) -> int | None:
        """Return the position of the row with that ``split`` and ``index``, without reading it; None if none has."""
        known = split == self._split and isinstance(index, int) and index in self._indices
        return self._indices.index(index) if known else None

    def _pages(self) -> Iterator[range]:
        size = PAGE if self._indices.step == 1 else 1
        return (self._indices[start : start + size] for start in range(0, len(self), size))

    def _page(self, wanted: range) -> list[dict[str, Any]]:
        """Return the rows of consecutive indices."""
        rows = [row for index in wanted if (row := self._kept.get(index)) is not None]
        if len(rows) < len(wanted):
            rows = rows_of(self._read(wanted[0], wanted[-1] + 1), wanted[0])
            self._kept.update(zip(wanted, rows, strict=True))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return [dict(row) for row in rows]


def rows_of(tasks: Sequence[Task], start: int = 0) -> list[dict[str, Any]]:
    """Return one row for each task, without its answers.

    A row has the ``prompt`` as a chat, the ``split`` and the ``index`` that name the task at a reset, its id as
    ``task_id``, and its labels: ``level``, ``family`` and ``tags``.

    Args:
        tasks: consecutive tasks of one split.
        start: the 0-based index of the first.
    """
    return [
        {
            "prompt": [{"role": "user", "content": task.prompt}],
            "split": task.split,
            "index": index,
            "task_id": task.id,
            "level": task.level,
            "family": task.family,
            "tags": [*task.tags],
        }
        for index, task in enumerate(tasks, start)
    ]


def labels_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a row for a trainer's own columns: ``level``, ``family`` and ``tags``, those that it has."""
    return {name: row[name] for name in LABELS if row.get(name)}


def reset_options_of(row: Task | str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a reset for a task or a row.

    Raises:
        ValueError: the row has no column for them.
    """
    if row is None:
        return {}
    if not isinstance(row, Mapping):
        return {"task": row}
    if row and not any(name in row for name in COLUMNS):
        raise ValueError(f"a row needs 'task', or 'split' and 'index'; this one has {', '.join(map(str, row))}")
    options = dict(row.get("options") or {})
    for name in ("task", "split", "index", "seed"):
        if row.get(name) is not None:
            options[name] = row[name]
    if "task" in options:
        options.pop("split", None), options.pop("index", None)
    return options
