"""Turn: who may act on an environment now. First come, first served, over threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class _Waiter:
    __slots__ = ("future", "granted", "loop", "shared")

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.granted = False
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Turn:
    """A lock with a queue. Exclusive turns are alone; shared ones (tools declared ``concurrent``) run together.

    An asyncio.Lock serves one loop only; environments are stepped from threads, private loops and servers.

    Attributes:
        holders: -1 for one that is alone, or the number of those that run together; while it is 0, nobody waits.
    """

    __slots__ = ("_mutex", "_queue", "holders")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.holders = 0
        self._queue: deque[_Waiter] | None = None  # made for the first that waits

    def __len__(self) -> int:
        """How many have the turn or wait for it."""
        return abs(self.holders) + len(self._queue or ())

    @property
    def taken(self) -> bool:
        """Whether somebody has the turn or waits for it."""
        return self.holders != 0 or bool(self._queue)

    def try_take(self, shared: bool = False) -> bool:
        """Take the turn if it is free and nobody waits."""
        with self._mutex:
            if self._queue or (self.holders and not self._free_for(shared)):
                return False
            self.holders = self.holders + 1 if shared else -1
            return True

    async def take(self, shared: bool = False) -> None:
        """Wait for the turn. Cancelling gives the place in the queue back."""
        with self._mutex:
            if not self._queue and self._free_for(shared):
                self.holders = self.holders + 1 if shared else -1
                return
            waiter = _Waiter(shared)
            if self._queue is None:
                self._queue = deque()
            queue = self._queue
            queue.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            with self._mutex:
                granted = waiter.granted
                if not granted:
                    queue.remove(waiter)
                    self._grant(queue)
            if granted:
                self.give(shared)
            raise

    def give(self, shared: bool = False) -> None:
        """Pass the turn on. From any thread."""
        with self._mutex:
            self.holders = self.holders - 1 if shared else 0
            if self._queue:
                self._grant(self._queue)

    def _free_for(self, shared: bool) -> bool:
        return self.holders == 0 or (shared and self.holders > 0)

    def _grant(self, queue: deque[_Waiter]) -> None:
        while queue and self._free_for(queue[0].shared):
            waiter = queue.popleft()
            if waiter.loop.is_closed():
                continue  # its thread ended while it waited; nobody is there to take the turn
            waiter.granted = True
            self.holders = self.holders + 1 if waiter.shared else -1
            waiter.loop.call_soon_threadsafe(waiter.wake)
