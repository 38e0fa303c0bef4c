"""Deadline: cancels the running task at its time and knows afterwards that it was the one to do so.

``asyncio.timeout`` recognises only a plain ``CancelledError``; code left running in a thread raises `Abandoned`.
"""

from __future__ import annotations

import asyncio


class Deadline:
    """A context manager for one piece of awaiting code.

    Args:
        after_s: seconds, or None for no deadline.
    """

    __slots__ = ("_after_s", "_before", "_handle", "_settled", "_task", "expired")

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s
        self._handle: asyncio.TimerHandle | None = None
        self._settled = False
        self.expired = False

    def __enter__(self) -> Deadline:
        if self._after_s is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._before = task, task.cancelling()
            self._handle = asyncio.get_running_loop().call_later(self._after_s, self._expire)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self.expired and not self._settled:
            # The code caught the cancellation and went on: it must not reach whatever the task does next.
            self._task.uncancel()

    def caused_it(self) -> bool:
        """In an ``except CancelledError``: whether this deadline, and nobody else, cancelled. Takes it back."""
        if not self.expired or self._settled:
            return False
        self._settled = True
        return self._task.uncancel() <= self._before

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()
