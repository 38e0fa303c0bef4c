"""The lock of an environment instance: fair, exclusive or shared, over threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextvars import ContextVar
from typing import Any

from mcpenv_client.errors import OperationCancelled, RateLimited, SessionLost, WireError

STOPPED = "the session was closed"
"""The text for operations that `Lock.stop` has ended or refused."""

lent: ContextVar[Lock | None] = ContextVar("lent", default=None)
"""The lock that the caller's operations use without waiting: whoever holds it waits for the caller."""


class _Waiter:
    __slots__ = ("future", "granted", "loop", "shared")

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.granted = False
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()


class Hold:
    """A context manager that releases the lock, which the running task holds. `Lock.cancel` cancels the task.

    Raises:
        SessionLost, OperationCancelled: `Lock.cancel` was called, and nothing else has cancelled the task.
    """

    __slots__ = ("_before", "_lock", "_shared", "_task", "_why")

    def __init__(self, lock: Lock, shared: bool, task: asyncio.Task[Any]) -> None:
        self._lock = lock
        self._shared = shared
        self._task = task
        self._before = task.cancelling()  # cancellations that `cancel` did not request
        self._why: WireError | None = None

    def __enter__(self) -> None:
        return  # `Lock.hold` has acquired the lock

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lock = self._lock
        lock._holds.remove(self)
        if lent.get() is not lock:
            lock.release(shared=self._shared)
        # The cancellation is always undone: it must not reach later work of the task. If the count stays above
        # `_before`, something else has cancelled the task, too, and that cancellation propagates.
        why = self._why
        if why is not None and self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise why from None

    def cancel(self, why: WireError) -> None:
        """Cancel the task, which raises ``why``."""
        if self._why is None:
            self._why = why
            self._task.cancel()


class Lock:
    """The lock with a queue: first come, first served.

    It has one holder, or several that all acquired it ``shared`` (tools declared ``concurrent``). An asyncio.Lock
    serves one loop only, but environments are stepped from threads, private loops and servers.

    Attributes:
        stopped: True if `stop` was called. Then `hold` raises; `acquire` still works, for the close of the instance.
    """

    __slots__ = ("_alone", "_holders", "_holds", "_mutex", "_queue", "stopped")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holders = 0  # -1 for an exclusive holder, else the number of shared ones
        self._queue: deque[_Waiter] = deque()
        self._holds: list[Hold] = []
        self._alone: list[asyncio.Future[None]] = []
        self.stopped = False

    def __len__(self) -> int:
        """Return the number of holders and waiters."""
        return abs(self._holders) + len(self._queue)

    @property
    def locked(self) -> bool:
        """True if the lock is held or waited for."""
        return self._holders != 0 or bool(self._queue)

    @property
    def holders(self) -> int:
        """The number of holders."""
        return abs(self._holders)

    @property
    def running(self) -> bool:
        """True if an operation runs, which `cancel` would cancel. A pause holds the lock without one."""
        return bool(self._holds)

    async def hold(self, *, shared: bool = False, limit: int | None = None) -> Hold:
        """Wait for the lock, for an operation of the running task. Cancelling leaves the queue.

        Args:
            limit: maximum number of holders and waiters; None: no limit.

        Raises:
            RateLimited: there are as many already.
            SessionLost: `stop` was called.
        """
        own = lent.get() is self
        with self._mutex:
            if limit is not None and len(self) >= limit and not own:
                raise RateLimited(f"{limit} calls are under way or wait their turn; no more are taken")
            if self.stopped:
                raise SessionLost(STOPPED)
            waiter = None if own or self._take(shared) else self._queued(shared)
        if waiter is not None:
            await self._granted(waiter)
            # `stop` cancels holders only. Waiters are refused here, when they get the lock.
            if self.stopped:
                self.release(shared=shared)
                raise SessionLost(STOPPED)
        task = asyncio.current_task(asyncio.get_running_loop())
        assert task is not None
        hold = Hold(self, shared, task)
        self._holds.append(hold)
        return hold

    async def alone(self) -> None:
        """Wait until the caller is the only holder. The caller must ensure that no operation begins meanwhile."""
        while self.holders > 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._alone.append(future)
            # The others may have released the lock before the future was in the list.
            if self.holders > 1:
                await future

    def stop(self) -> None:
        """Cancel the operations that hold the lock and refuse further ones. Call it on the loop that runs them."""
        self.stopped = True
        self.cancel(SessionLost(STOPPED))

    def cancel(self, why: WireError | None = None) -> bool:
        """Cancel the operations that hold the lock, which raise ``why``. Return False if there is none."""
        for hold in self._holds:
            hold.cancel(why or OperationCancelled("the call was cancelled"))
        return bool(self._holds)

    def try_acquire(self, *, shared: bool = False) -> bool:
        """Acquire the lock unless that would mean waiting. Return whether it was acquired."""
        with self._mutex:
            return self._take(shared)

    async def acquire(self, *, shared: bool = False) -> None:
        """Wait for the lock. Cancelling leaves the queue."""
        with self._mutex:
            waiter = None if self._take(shared) else self._queued(shared)
        if waiter is not None:
            await self._granted(waiter)

    def _take(self, shared: bool) -> bool:
        # Shared calls queue behind an exclusive waiter. Otherwise they could starve it.
        if self._queue or not (self._holders == 0 or (shared and self._holders > 0)):
            return False
        self._holders = self._holders + 1 if shared else -1
        return True

    def _queued(self, shared: bool) -> _Waiter:
        waiter = _Waiter(shared)
        self._queue.append(waiter)
        return waiter

    async def _granted(self, waiter: _Waiter) -> None:
        """Wait until the lock is granted. Cancelling leaves the queue."""
        try:
            await waiter.future
        except asyncio.CancelledError:
            # The lock may have been granted after the cancellation. Then this task has to pass it on.
            with self._mutex:
                granted = waiter.granted
                if not granted:
                    self._queue.remove(waiter)
                    # An exclusive waiter blocks shared ones behind it, which may run now.
                    self._grant()
            if granted:
                self.release(shared=waiter.shared)
            raise

    def release(self, *, shared: bool = False) -> None:
        """Release the lock and grant it to the next in the queue. Callable from any thread."""
        with self._mutex:
            self._holders = self._holders - 1 if shared else 0
            if self._queue:
                self._grant()
        # Wake all of them: each checks for itself whether it is the only holder.
        if self._alone:
            waiting, self._alone = self._alone, []
            for future in waiting:
                future.get_loop().call_soon_threadsafe(_wake, future)

    def _grant(self) -> None:
        while self._queue and (self._holders == 0 or (self._queue[0].shared and self._holders > 0)):
            waiter = self._queue.popleft()
            if waiter.loop.is_closed():
                continue  # its thread ended while it waited
            waiter.granted = True
            # Counted here, not when the waiter wakes, so that no newcomer can acquire the lock in between.
            self._holders = self._holders + 1 if waiter.shared else -1
            waiter.loop.call_soon_threadsafe(_wake, waiter.future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
