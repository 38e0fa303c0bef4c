"""The threads that run sync user code, so that it does not block the event loop.

The threads are daemons, in a pool without a limit. anyio's pool has 40 threads, which 40 stuck tools would use up, and
a stuck thread of an executor keeps the interpreter from exiting. Threads that run stuck code are abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

IDLE_S = 10.0
"""Seconds after which an idle pool thread ends."""


class Runner(Protocol):
    """The runner of an environment's sync code."""

    inline: bool
    """True if code runs in the caller's thread: it blocks the caller, and no deadline can stop it."""

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of ``fn``. Cancelling raises `Abandoned` at once where the code cannot be stopped."""
        ...

    def close(self) -> None:
        """End the threads that belong to this runner alone."""
        ...


class Abandoned(asyncio.CancelledError):
    """Raised in a cancelled caller if its code still runs in its thread."""

    def __init__(self, job: _Job) -> None:
        super().__init__()
        self._job = job

    def when_finished(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` from the thread when the code returns. Call it at once if the code has returned already."""
        self._job.when_finished(callback)


class _Job:
    __slots__ = ("_callbacks", "_finished", "_mutex", "args", "context", "fn", "future", "kwargs", "loop")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.context = contextvars.copy_context()  # copied in the caller, as the thread does not see its variables
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self._mutex = threading.Lock()
        self._finished = False
        self._callbacks: list[Callable[[], None]] = []

    def __call__(self) -> None:
        result, error = None, None
        try:
            result = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as raised:  # noqa: BLE001 - passed to the awaiting task, SystemExit of a tool too
            error = raised
        with self._mutex:
            self._finished = True
            callbacks, self._callbacks = self._callbacks, []
        # Before the result is delivered: the thread is idle again when the caller continues.
        for callback in callbacks:
            callback()
        with contextlib.suppress(RuntimeError):  # the loop closed while the code ran, so no caller waits
            self.loop.call_soon_threadsafe(self._deliver, result, error)

    def when_finished(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if not self._finished:
                self._callbacks.append(callback)
                return
        callback()

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():  # cancelled
            return
        if error is None:
            self.future.set_result(result)
        elif isinstance(error, StopIteration | GeneratorExit):
            # A future cannot carry StopIteration (PEP 479), and GeneratorExit would close the coroutine that awaits it.
            wrapped = RuntimeError(f"{type(error).__name__} was raised")
            wrapped.__cause__ = error
            self.future.set_exception(wrapped)
        else:
            self.future.set_exception(error)

    async def result(self) -> Any:
        try:
            return await self.future
        except asyncio.CancelledError:
            with self._mutex:
                finished = self._finished
            # The result was delivered, and the task was cancelled before it could continue: nothing was abandoned.
            if finished and self.future.done() and not self.future.cancelled():
                raise
            # Also if the code has returned since the cancellation. `when_finished` then calls back at once.
            raise Abandoned(self) from None


class _Thread:
    """A daemon thread that runs jobs until it gets None."""

    def __init__(self, name: str, idle_s: float | None, on_idle_end: Callable[[_Thread], bool] | None = None) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle_s = idle_s
        self._on_idle_end = on_idle_end
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=self._idle_s)
            except Empty:
                assert self._on_idle_end is not None
                if self._on_idle_end(self):
                    return
                continue  # a caller has just taken this thread from the pool: its job follows
            if job is None:
                return
            job()
            del job  # an idle thread must not hold the last environment alive


class Threads:
    """A pool of threads without a limit of its own: each session runs one piece of sync code at a time."""

    inline = False

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[_Thread] = []

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``fn`` in a pool thread, with the caller's context variables."""
        job = _Job(fn, args, kwargs)
        thread = self._thread()
        job.when_finished(lambda: self._put_back(thread))
        thread.jobs.put(job)
        return await job.result()

    def close(self) -> None:
        """Do nothing, as idle threads end by themselves."""

    def _thread(self) -> _Thread:
        """Return an idle thread, or a new one."""
        with self._mutex:
            # Last in, first out, so that threads which are not needed reach their timeout.
            if self._idle:
                return self._idle.pop()
        return _Thread("mcpenv-worker", IDLE_S, self._forget)

    def _put_back(self, thread: _Thread) -> None:
        with self._mutex:
            self._idle.append(thread)

    def _forget(self, thread: _Thread) -> bool:
        with self._mutex:
            if thread in self._idle:
                self._idle.remove(thread)
                return True
        return False


class OwnThread:
    """The runner with one thread for all code of an environment: SQLite, sync Playwright and tkinter need it."""

    inline = False

    def __init__(self) -> None:
        self._thread = _Thread("mcpenv-environment", None)

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``fn`` in the environment's thread, with the caller's context variables."""
        job = _Job(fn, args, kwargs)
        self._thread.jobs.put(job)
        return await job.result()

    def close(self) -> None:
        """End the thread after the queued jobs."""
        self._thread.jobs.put(None)


THREADS = Threads()
