"""The episodes of a play, planned as the tasks are read."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from mcpenv_client.rows import LIKE_ALL, Rows, reset_options_of
from mcpenv_client.types.starts import Start
from mcpenv_client.types.tasks import Task

from .assignment import Assignment, Share, check_several
from .sampler import TaskSampler

if TYPE_CHECKING:
    from .checkpoint import PlayLog

Row = Task | str | Mapping[str, Any] | Start | Assignment | None
"""A task, its id, a row, a step of a recorded episode, or the assignment of an unfinished episode. None: an episode
without a task.
"""

Tasks = Iterable[Row] | AsyncIterable[Row]
"""Tasks that are read when there is room for their episodes, so that they may be endless."""


_LATER: Any = object()
"""Stands for a row that an async iterator has not given yet."""


class Plan:
    """The shares of a play, in the order of its tasks. A task is read when its first share is needed.

    Args:
        tasks: tasks; None: ``n`` groups without a task.
        n: the number of plays of each task, each with a different seed.
        group: the number of episodes in each group, with the same task and seed.
        seed: the seed of a task's first group; the following groups count up from it. None: the tasks' own seeds;
            without tasks 0.
        forks: one share for each group; False: for each episode.
        unfinished: episodes of an earlier play, which come before the tasks.
        check: raises a ValueError for a row that the pool does not take.

    Attributes:
        total: the number of episodes; None if it is not known.
        ended: True if there are no more tasks.

    Raises:
        ValueError: a number is too small, tasks is one task, or a row that is known before the play names no task.
    """

    def __init__(
        self,
        tasks: Tasks | None,
        *,
        n: int,
        group: int,
        seed: int | None,
        forks: bool = False,
        unfinished: Iterable[Assignment] = (),
        check: Callable[[Any], None] = lambda _: None,
    ) -> None:
        for name, value in (("n", n), ("group", group)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if forks and group < 2:
            raise ValueError(f"forks=True needs groups: group is {group}; give 2 or more")
        self._n, self._group, self._forks, self._check = n, group, forks, check
        self._seed = 0 if tasks is None and seed is None else seed
        self._number = self._groups = 0
        given: Any = [None] if tasks is None else tasks
        check_several(given)
        for row in _known(given):  # an error in the last row should not end a play that has run for hours
            self._first_of(row)
        left = sorted(unfinished, key=lambda each: each.number)
        self.total = len(given) * n * group + len(left) if hasattr(given, "__len__") else None
        self.ended = False
        self._rows: Iterator[Row] | AsyncIterator[Row] = aiter(given) if hasattr(given, "__aiter__") else iter(given)
        self._reading: asyncio.Future[Row] | None = None
        self._shares: deque[Share] = deque()
        for _, group_of in itertools.groupby(left, key=lambda each: each.group):
            shares = [share for each in group_of for share in self._shares_of(each)]
            self._shares.extend([tuple(each for share in shares for each in share)] if forks else shares)
        self._given, self._skip = given, 0
        self._log: PlayLog | None = None

    def keep(self, log: PlayLog) -> None:
        """Keep what is read in a log, and begin with what it has from before a restart."""
        kept = log.kept
        if not kept.number and not kept.rows:
            log.add("read", [*self._shares], 0)
        self._shares = deque(each.share for each in kept.shares.values())
        self._rows = aiter(self._given) if hasattr(self._given, "__aiter__") else iter(self._given)
        self._number, self._groups, self._skip, self._log = kept.number, kept.groups, kept.rows, log
        log.settle = self._settle

    def next(self, wake: Callable[[], None]) -> Share | None:
        """Return the next share. Return None if there is none now: call again after ``wake`` was called, or `ended`."""
        while not self._shares and not self.ended:
            if self._reading is not None and not self._reading.done():
                return None
            try:
                row = self._read(wake)
            except (StopIteration, StopAsyncIteration):
                self.ended = True
            else:
                self._take(row)
        return self._shares.popleft() if self._shares else None

    def _take(self, row: Any) -> None:
        """Add the shares of a row, unless it was read before a restart: then they are known."""
        if row is _LATER:
            return
        if self._skip:
            self._skip -= 1
            return
        shares = self._shares_of(row)
        self._shares.extend(shares)
        if self._log is not None:
            self._log.add("read", shares, 1)

    def _settle(self) -> int:
        """Take the row that an async iterator has just given. Return the number of rows to read once more."""
        reading = self._reading
        if reading is not None and reading.done() and not reading.cancelled() and reading.exception() is None:
            self._reading = None
            self._take(reading.result())
        return self._skip

    def _read(self, wake: Callable[[], None]) -> Any:
        if not hasattr(self._rows, "__anext__"):
            return next(self._rows)
        reading, self._reading = self._reading, None
        if reading is not None:
            return reading.result()
        self._reading = asyncio.ensure_future(_next(cast("AsyncIterator[Row]", self._rows)))
        self._reading.add_done_callback(lambda _: wake())
        return _LATER

    async def close(self) -> list[Assignment]:
        """Stop the reading of an async iterator, and return the episodes that were read and not taken."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
            if not self._reading.cancelled() and self._reading.exception() is None:
                self._shares.extend(self._shares_of(self._reading.result()))
        if self._log is not None:
            self._log.end()
        return [each for share in self._shares for each in share]

    def _first_of(self, row: Row) -> tuple[int | None, dict[str, Any]]:
        """Return the first seed of a row, and the other options of its reset."""
        self._check(row.row if isinstance(row, Assignment) else row)
        if isinstance(row, Assignment):
            return row.seed, {}
        if isinstance(row, Start):
            return None, {}  # the record has the seed
        options = reset_options_of(row)
        own = options.pop("seed", None)
        first = own if self._seed is None else self._seed
        if first is None and self._n > 1:
            raise ValueError("n above 1 needs a seed, so that the episodes of a task differ; give seed=")
        return first, options

    def _shares_of(self, row: Row) -> list[Share]:
        first, options = self._first_of(row)
        if isinstance(row, Assignment):
            self._number, self._groups = max(self._number, row.number + 1), max(self._groups, row.group + 1)
            return [(row,)]
        shares: list[Share] = []
        for repeat in range(self._n):
            its = None if first is None else first + repeat
            made = tuple(
                Assignment(self._number + sample, self._groups, sample, its, options, row)
                for sample in range(self._group)
            )
            self._number, self._groups = self._number + self._group, self._groups + 1
            shares.extend([made] if self._forks else [(each,) for each in made])
        return shares


def _known(tasks: Any) -> Iterable[Any]:
    """Return the rows that are known before any is read: those in memory, and one for all that are read when used."""
    if isinstance(tasks, TaskSampler):
        return tasks.known()
    if isinstance(tasks, Rows):
        return [LIKE_ALL] if tasks else []
    return tasks if isinstance(tasks, list | tuple) else ()


async def _next(rows: AsyncIterator[Row]) -> Row:
    return await anext(rows)
