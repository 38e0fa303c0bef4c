"""Deadline: cancels the running task at its time and knows afterwards that it was the one to do so.

``asyncio.timeout`` recognises only a plain ``CancelledError``; code left running in a thread raises `Abandoned`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from .eager import eager
from .under_way import Piece

T = TypeVar("T")


class Deadline:
    """A context manager for one piece of awaiting code. The time runs from when it is made.

    What never waits needs no timer, and no timer could stop it: the deadline is armed when the code first waits.

    Args:
        after_s: seconds, or None for no deadline.
        piece: of what the code is a part; without one it is to be awaited by `over`.
        made_at: when the time began to run (``time.perf_counter``); None: now.
    """

    # Of the class: one is made for every step of an environment whose steps have a limit, and few of these are set.
    _handle: asyncio.TimerHandle | None = None
    _outer: Deadline | None = None
    _settled = False
    expired = False

    def __init__(self, after_s: float | None, piece: Piece | None = None, made_at: float | None = None) -> None:
        self._after_s = after_s
        self._piece = piece
        if after_s is None:
            return
        self._made_at = time.perf_counter() if made_at is None else made_at
        if piece is not None:
            outer, piece.deadline = piece.deadline, self
            if outer is not None:
                self._outer = outer
            if piece.task is not None:
                self._waits()  # which may be in another task by now: middleware may make one

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        """The code has come to its end."""
        if self._piece is not None and self._after_s is not None:
            self._piece.deadline = self._outer
        if self._handle is None:
            return
        self._handle.cancel()
        if self.expired and not self._settled:
            # The code caught the cancellation and went on: it must not reach whatever the task does next.
            self._task.uncancel()

    def over(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """``work``, to be awaited inside the ``with``."""
        return work if self._after_s is None else eager(work, self._waits)

    def arm(self, task: asyncio.Task[Any]) -> None:
        """From now on the running task is cancelled at the time."""
        assert self._after_s is not None
        if self._outer is not None and self._outer._handle is None:
            self._outer.arm(task)
        self._task, self._before = task, task.cancelling()
        left_s = self._made_at + self._after_s - time.perf_counter()
        self._handle = asyncio.get_running_loop().call_later(max(left_s, 0.0), self._expire)

    def caused_it(self) -> bool:
        """In an ``except CancelledError``: whether this deadline, and nobody else, cancelled. Takes it back."""
        if not self.expired or self._settled:
            return False
        self._settled = True
        return self._task.uncancel() <= self._before

    def _waits(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.arm(task)

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()
