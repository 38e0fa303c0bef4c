"""The event loop for blocking clients: one daemon thread for the whole process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_UP_S = 1.0
"""Seconds after which a waiting thread runs the handler of a signal that arrived just before the wait."""


class _Call(Generic[T]):
    """A coroutine that runs in the portal's thread while another thread waits for its result."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._result: T
        # A plain lock, not a future: a signal handler that interrupts the wait may itself call a client. The portal's
        # thread must not wait for a lock that the interrupted thread holds.
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        """Begin. Called in the portal's thread."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Cancel the coroutine if it runs. Called in the portal's thread."""
        if self._task is not None:
            self._task.cancel()

    def result(self) -> T:
        """Wait for the result. Signal handlers run meanwhile, and may raise."""
        while not self._done.acquire(timeout=_LOOK_UP_S):
            if sys.is_finalizing():
                raise RuntimeError("the interpreter is shutting down, and the thread of the sync clients with it")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it refers to this object by its traceback
        return self._result

    async def _run(self) -> None:
        try:
            self._result = await self._function()
        except BaseException as error:  # noqa: BLE001 - raised where the call was made
            self._error = error
        finally:
            self._done.release()


class Portal:
    """An event loop in a daemon thread of its own, started on first use. Any thread may call. Each lives for ever."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may make the first call while another makes the first call.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id: int | None = None
        self._of_parents: list[asyncio.AbstractEventLoop] = []
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.after_fork)

    @property
    def is_current_thread(self) -> bool:
        """True if the caller runs in the portal's own thread."""
        return threading.get_ident() == self._thread_id

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``await function()`` in the portal's thread and return its result.

        The coroutine runs in the context (`contextvars`) of the caller. An exception that interrupts the wait, such as
        KeyboardInterrupt, cancels the coroutine and is raised at once.

        Raises:
            RuntimeError: the caller runs in the portal's thread, which would wait for itself; or the interpreter is
                shutting down.
        """
        if self.is_current_thread:
            raise RuntimeError("a sync client was used inside a coroutine of its own loop; use the async client there")
        if sys.is_finalizing():
            raise RuntimeError("a sync client was used while the interpreter is shutting down")
        loop = self._running()
        call = _Call(function)
        try:
            loop.call_soon_threadsafe(call.start)
            return call.result()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)  # no effect if the coroutine itself has raised
            raise

    async def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``await function()`` in the portal's thread and return its result, from a coroutine of any loop.

        Cancelling the caller cancels the coroutine. It runs in the context (`contextvars`) of the caller.
        """
        if self.is_current_thread:
            return await function()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(), self._running()))

    def start(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run ``await function()`` in the portal's thread; do not wait for it."""
        self._running().call_soon_threadsafe(_Call(function).start)

    def after_fork(self) -> None:
        """Replace the loop in a forked child: its thread does not exist there, and the lock may be held."""
        self._lock = threading.RLock()
        if self._loop is not None:
            # Kept, because garbage collection would unregister sockets that the parent still uses.
            self._of_parents.append(self._loop)
        self._loop = self._thread_id = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="mcpenv-client", daemon=True)
                thread.start()
                self._thread_id, self._loop = thread.ident, loop
            return self._loop


PORTAL = Portal()


async def in_daemon_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a daemon thread, and wait for it.

    Unlike with `asyncio.to_thread`, neither the end of the event loop nor that of the program waits for a call that
    nobody waits for any more.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(finish: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            finish(outcome)

    def run() -> None:
        try:
            told = done.set_result, function(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            told = done.set_exception, error  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="mcpenv-call", daemon=True).start()
    return await done
