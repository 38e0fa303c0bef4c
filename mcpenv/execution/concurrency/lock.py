"""The lock of an environment instance: fair, exclusive or shared, over threads and event loops alike."""

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


class _Held:
    __slots__ = ("_lock", "_shared")

    def __init__(self, lock: Lock, shared: bool) -> None:
        self._lock = lock
        self._shared = shared

    async def __aenter__(self) -> None:
        await self._lock.acquire(shared=self._shared)

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release(shared=self._shared)


class Lock:
    """The lock with a queue: first come, first served.

    It has one holder, or several that all acquired it ``shared`` (tools declared ``concurrent``). An asyncio.Lock
    serves one loop only, but environments are stepped from threads, private loops and servers.
    """

    __slots__ = ("_holders", "_mutex", "_queue")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holders = 0  # -1 for an exclusive holder, else the number of shared ones
        self._queue: deque[_Waiter] = deque()

    def __len__(self) -> int:
        """Return the number of holders and waiters."""
        return abs(self._holders) + len(self._queue)

    @property
    def locked(self) -> bool:
        """True if the lock is held or waited for."""
        return self._holders != 0 or bool(self._queue)

    def held(self, *, shared: bool = False) -> _Held:
        """Return an async context manager that holds the lock."""
        return _Held(self, shared)

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Acquire the lock unless that would mean waiting. Return whether it was acquired."""
        with self._mutex:
            return self._acquire_now(shared)

    async def acquire(self, *, shared: bool = False) -> None:
        """Wait for the lock. Cancelling leaves the queue."""
        with self._mutex:
            if self._acquire_now(shared):
                return
            waiter = _Waiter(shared)
            self._queue.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            with self._mutex:
                granted = waiter.granted
                if not granted:
                    self._queue.remove(waiter)
                    self._grant()
            if granted:
                self.release(shared=shared)
            raise

    def release(self, *, shared: bool = False) -> None:
        """Release the lock and grant it to the next in the queue. Callable from any thread."""
        with self._mutex:
            self._holders = self._holders - 1 if shared else 0
            self._grant()

    def _acquire_now(self, shared: bool) -> bool:
        if self._queue or not self._is_free_for(shared):
            return False
        self._holders = self._holders + 1 if shared else -1
        return True

    def _is_free_for(self, shared: bool) -> bool:
        return self._holders == 0 or (shared and self._holders > 0)

    def _grant(self) -> None:
        while self._queue and self._is_free_for(self._queue[0].shared):
            waiter = self._queue.popleft()
            if waiter.loop.is_closed():
                continue  # its thread ended while it waited
            waiter.granted = True
            self._holders = self._holders + 1 if waiter.shared else -1
            waiter.loop.call_soon_threadsafe(waiter.wake)
