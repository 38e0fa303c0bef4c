"""The pause of a session: it holds the lock of the instance, so that what comes next waits as it waits for a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from mcpenv.execution.concurrency.lock import Lock, lent

T = TypeVar("T")

MAX_PAUSE_S = 3600.0
"""Maximum seconds of a pause. One that everybody has forgotten must not hold a session for ever."""


class Pause:
    """The pause, which begins when the calls that run or wait are over, and ends by `resume` or at its deadline.

    Calls of both planes wait meanwhile. Waiting is no part of a call's own deadline. All methods belong to the event
    loop of the session.

    Args:
        lock: the lock of the instance to pause. It is held at once if it is free.
        until: the deadline, in seconds since the epoch.

    Attributes:
        lock, until: as given.
        begun: True while the lock is held.
        over: True once the pause has ended.
    """

    def __init__(self, lock: Lock, until: float) -> None:
        self.lock = lock
        self.over = self._lent = False
        self.begun = lock.try_acquire()
        self._waiting = None if self.begun else asyncio.create_task(self._begin())
        self._timer: asyncio.TimerHandle | None = None
        self.last_until(until)

    def last_until(self, until: float) -> None:
        """Set the deadline."""
        self.until = until
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(until - time.time(), self.resume)

    async def lend(self, operation: Awaitable[T]) -> T:
        """Run one operation at a time on the instance, during a pause that has begun. `resume` then waits for it."""
        self._lent, token = True, lent.set(self.lock)
        try:
            return await operation
        finally:
            lent.reset(token)
            self._lent = False
            if self.over:
                self.resume()

    def resume(self) -> None:
        """End the pause."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._lent:
            return
        if self.begun:
            self.begun = False
            self.lock.release()
        elif self._waiting is not None:
            self._waiting.cancel()

    async def _begin(self) -> None:
        await self.lock.acquire()
        self.begun = True
