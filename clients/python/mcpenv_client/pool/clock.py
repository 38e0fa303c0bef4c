"""The clock of a pool's episodes, which stops while the pool is paused."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """A monotonic clock that can be stopped. Stop and start it in the event loop of those that await `running`.

    Attributes:
        ended: True after `end`.
    """

    def __init__(self) -> None:
        self.ended = False
        self._lock = threading.Lock()
        self._going = threading.Event()
        self._going.set()
        self._stopped_at = 0.0
        self._stopped_s = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    def now(self) -> float:
        """Return the time in seconds, without the times for which the clock was stopped; infinity after `end`."""
        with self._lock:
            if self.ended:
                return math.inf
            return (time.monotonic() if self._going.is_set() else self._stopped_at) - self._stopped_s

    def stop(self) -> None:
        """Stop the clock. Do nothing if it is stopped."""
        with self._lock:
            if self._going.is_set():
                self._stopped_at = time.monotonic()
                self._going.clear()

    def start(self) -> None:
        """Start the clock, and continue what waits for it. Do nothing if it is started."""
        with self._lock:
            if not self._going.is_set():
                self._stopped_s += time.monotonic() - self._stopped_at
                self._going.set()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @property
    def stopped(self) -> bool:
        """True from `stop` to `start`."""
        return not self._going.is_set()

    def end(self) -> None:
        """Let all deadlines have passed, for ever, so that what runs in threads ends at its next call."""
        with self._lock:
            self.ended = True
        self.start()

    def wait(self) -> None:
        """Block the thread while the clock is stopped."""
        self._going.wait()

    async def running(self) -> None:
        """Wait while the clock is stopped."""
        while not self._going.is_set():
            await self._next_start()

    def _next_start(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    async def wait_until(self, deadline: float, future: asyncio.Future[Any]) -> None:
        """Wait until a time of this clock has come, or a future is done."""
        while not future.done() and (left_s := deadline - self.now()) > 0:
            if self._going.is_set():
                await asyncio.wait({future}, timeout=None if left_s == math.inf else left_s)
            else:
                await asyncio.wait({future, self._next_start()}, return_when=asyncio.FIRST_COMPLETED)

    async def limited(self, call: Coroutine[Any, Any, T] | asyncio.Future[T], deadline: float) -> T:
        """Return the result of a call, which is cancelled at a time of this clock.

        Raises:
            asyncio.TimeoutError: it was cancelled at that time.
        """
        future = asyncio.ensure_future(call)
        try:
            await self.wait_until(deadline, future)
        finally:
            # Returning earlier would let the call go on after its episode.
            await _cancelled(future)
        if future.cancelled():
            raise asyncio.TimeoutError
        return future.result()


async def _cancelled(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.cancel()
        await asyncio.wait({future})
    if not future.cancelled():
        future.exception()  # or else it is logged as lost, if this task is cancelled at the same time
