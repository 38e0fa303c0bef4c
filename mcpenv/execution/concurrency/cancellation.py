"""Deadlines, calls that end with their session, and calls of agents, which may outlive their clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from mcpenv_client.errors import SessionLost

logger = logging.getLogger("mcpenv")

T = TypeVar("T")


class Deadline:
    """A context manager that cancels the current task after ``limit_s`` seconds; None for no limit.

    The same as `asyncio.timeout`, which in Python 3.11 does not recognize `Abandoned`, a subclass of `CancelledError`.

    Raises:
        TimeoutError: the deadline passed, and the task was not cancelled for another reason.
    """

    __slots__ = ("_before", "_expired", "_handle", "_limit_s", "_loop", "_task")

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._expired = False
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> None:
        if self._limit_s is None:
            return
        self._task = _current_task()
        self._before = self._task.cancelling()
        self._loop = self._task.get_loop()
        # Most calls return without suspending: they end before the timer is set, which costs ten times as much.
        self._handle = self._loop.call_soon(self._set_timer, self._loop.time() + self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._handle is None:
            return
        self._handle.cancel()
        # Always undone: the cancellation must not reach later work of the task.
        if self._expired and self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _set_timer(self, when: float) -> None:
        self._handle = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


class InFlight:
    """The calls that run in one environment instance.

    Attributes:
        stopped: True if `stop` was called. No further call begins.
    """

    __slots__ = ("_calls", "_waiting", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._calls: list[_Call] = []
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._calls)

    def call(self) -> _Call:
        """Return a context manager that keeps the current task among the calls in flight.

        Raises:
            SessionLost: `stop` was called, and the task was not cancelled for another reason.
        """
        return _Call(self)

    async def alone(self) -> None:
        """Wait until the caller is the only call in flight. No call may begin meanwhile."""
        while len(self._calls) > 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if len(self._calls) > 1:
                await future

    def stop(self) -> None:
        """Cancel the calls in flight and refuse further ones. Call it on the event loop that runs them."""
        self.stopped = True
        for call in self._calls:
            call.cancel()

    def add(self, call: _Call) -> None:
        """Add a call."""
        if self.stopped:
            raise SessionLost("the session was closed")
        self._calls.append(call)

    def remove(self, call: _Call) -> None:
        """Remove a call and wake the callers of `alone`."""
        self._calls.remove(call)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.get_loop().call_soon_threadsafe(_wake, future)


class _Call:
    """One call in flight: the task that runs it, and whether `InFlight.stop` cancelled that task."""

    __slots__ = ("_before", "_cancelled", "_in_flight", "_task")

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._cancelled = False

    def __enter__(self) -> None:
        self._task = _current_task()
        self._before = self._task.cancelling()
        self._in_flight.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._in_flight.remove(self)
        if not self._cancelled:
            return
        if self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise SessionLost("the session was closed") from None

    def cancel(self) -> None:
        """Cancel the task."""
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()


class AgentCall:
    """The call of an agent, in a task of its own that may outlive its client.

    Cancelling `result` cancels the call only if it can be stopped: it waits for the lock, or its tool is async. A call
    that cannot be stopped runs to its end in the background, and is scored and recorded once. Nothing that the client
    of one call does may change the world of others.

    Attributes:
        stoppable: False while sync code runs in a thread, and after the tool has returned.
    """

    __slots__ = ("_task", "stoppable")

    def __init__(self) -> None:
        self.stoppable = True

    async def result(self, call: Coroutine[Any, Any, T]) -> T:
        """Run ``call`` and return its result."""
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            if self.stoppable:
                task.cancel()
                await asyncio.wait([task])
            else:
                logger.info("a client left during a call that cannot be stopped; the call runs to its end")
                _OUTLIVING.add(task)
                task.add_done_callback(_ended)
            raise


_OUTLIVING: set[asyncio.Task[Any]] = set()


def _ended(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not report it. The record has the step."""
    _OUTLIVING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a call whose client had left ended with %s", type(error).__name__)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
