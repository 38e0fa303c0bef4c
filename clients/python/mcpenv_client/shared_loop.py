"""The event loop of blocking clients, for what only an event loop can do: in one thread, for all of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from . import porters

T = TypeVar("T")


class _Call(porters.Call[T]):
    """A coroutine that runs in the loop's thread."""

    __slots__ = ("_began", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(coroutine)
        self._task: asyncio.Task[None] | None = None
        self._began = False

    def start(self) -> None:
        """In the loop's thread: begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """In the loop's thread: nobody waits any more."""
        if self._task is not None:
            self._task.cancel()
        if not self._began:
            self._coroutine.close()

    async def _run(self) -> None:
        self._began = True
        try:
            self._result = await self._coroutine
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            self._error = error
        finally:
            self._done.release()


class SharedLoop:
    """An event loop in a daemon thread, begun at the first use and shared by the sync clients of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._of_parents: list[asyncio.AbstractEventLoop] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. What interrupts the caller (Ctrl-C, say) cancels it.

        Raises:
            RuntimeError: called on the shared thread itself, which would wait for itself.
        """
        loop = self._loop or self._running()
        if self.is_here:
            coroutine.close()
            raise RuntimeError("a sync client was used inside a coroutine of its own loop; use the async client there")
        call = _Call(coroutine)
        job = porters.current()
        try:
            if job is not None:
                job.on_cancel(lambda: loop.call_soon_threadsafe(call.cancel))
            # Ctrl-C may come at any point here; asyncio.run_coroutine_threadsafe would leave the call running if it
            # came before its future is in our hands.
            loop.call_soon_threadsafe(call.start)
            return call.wait()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)  # does nothing if it is the coroutine that raised
            raise

    @property
    def is_here(self) -> bool:
        """Whether the shared thread asks."""
        return threading.get_ident() == self._thread

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call in the shared thread, from any."""
        (self._loop or self._running()).call_soon_threadsafe(callback, *args)

    def after_fork(self) -> None:
        """In a child process: the thread is gone, and the lock may have been held; begin anew at the next use."""
        self._lock = threading.Lock()
        if self._loop is not None:
            # Kept, because collecting it would close sockets that the parent still uses.
            self._of_parents.append(self._loop)
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="mcpenv-client", daemon=True)
                thread.start()
                # Last, because `run` looks at it without the lock.
                self._thread, self._loop = thread.ident, loop
            return self._loop


SHARED_LOOP = SharedLoop()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=SHARED_LOOP.after_fork)


__all__ = ["SHARED_LOOP", "SharedLoop"]
