"""Workers: the threads in which authors' sync code runs, so that nothing slow of theirs runs on the event loop.

Daemon threads of our own: anyio's pool has 40 places, which 40 stuck tools would fill, and a stuck executor thread
keeps the interpreter from exiting. A thread that got stuck is left behind; others go on.

To wake a thread up takes several times as long as a small tool. So code that has always been quick (`Pace`) waits
behind other such code for the thread that is at it, unless that turns out to be slow this time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from .loops import NoLoop

IDLE_S = 10.0
"""Seconds after which an idle pool thread ends."""

QUICK_S, QUICK_RUNS = 0.001, 16
"""Code is quick whose last so many runs took less than so many seconds each."""

MANY = 10
"""Times `QUICK_S` that a piece of code may take while the event loop is busy, before nobody waits for it."""


class Pace:
    """How long the runs of a piece of code take.

    Attributes:
        quick: they may wait behind each other, and behind those of other code that is.
    """

    __slots__ = ("_runs", "quick")

    def __init__(self) -> None:
        self.quick = False
        self._runs = 0  # quick ones, since the last slow one

    def took(self, seconds: float) -> None:
        """A run took so long. From any thread."""
        self._runs = self._runs + 1 if seconds < QUICK_S else 0
        self.quick = self._runs >= QUICK_RUNS


class Runner(Protocol):
    """How an environment's sync code is run."""

    inline: bool
    """In the caller's thread: the code blocks whoever awaits, and no deadline can stop it."""

    async def run(self, fn: Callable[..., Any], *args: Any, pace: Pace | None = None, **kwargs: Any) -> Any:
        """The result of ``fn``. Cancelling returns at once with `Abandoned` where the code cannot be stopped.

        Args:
            pace: of this piece of code; None if that is not known.
        """
        ...

    def close(self) -> None:
        """End threads that belong to this runner alone."""
        ...


class Abandoned(asyncio.CancelledError):
    """The caller was cancelled while the code still runs in its thread.

    Attributes:
        finished: set when the thread is done with it.
    """

    def __init__(self, job: _Job) -> None:
        super().__init__()
        self._job = job

    def when_finished(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the code has returned, from its thread; at once if it already has."""
        self._job.when_finished(callback)


class Inline:
    """In the caller's thread, without a hop: an environment used in process.

    The event loop that awaits is hidden meanwhile, as it is in a worker thread: ``asyncio.run`` and sync Playwright
    refuse to work where one runs.
    """

    inline = True

    async def run(self, fn: Callable[..., Any], *args: Any, pace: Pace | None = None, **kwargs: Any) -> Any:
        """Call it."""
        with NoLoop():
            return fn(*args, **kwargs)

    def close(self) -> None:
        """Nothing to end."""


class _Job:
    __slots__ = (
        "_callbacks",
        "_finished",
        "_mutex",
        "args",
        "context",
        "fn",
        "future",
        "kwargs",
        "loop",
        "pace",
        "waits",
    )

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], pace: Pace | None = None
    ) -> None:
        self.fn, self.args, self.kwargs, self.pace = fn, args, kwargs, pace
        self.waits = False
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self._mutex = threading.Lock()
        self._finished = False
        self._callbacks: list[Callable[[], None]] = []

    def __call__(self) -> None:
        result, error = None, None
        began = time.monotonic()
        try:
            result = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits, SystemExit of a tool too
            error = raised
        if self.pace is not None:
            self.pace.took(time.monotonic() - began)
        with self._mutex:
            self._finished = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        with contextlib.suppress(RuntimeError):  # the loop closed while the code ran: nobody waits any more
            self.loop.call_soon_threadsafe(self._deliver, result, error)

    def when_finished(self, callback: Callable[[], None]) -> None:
        with self._mutex:
            if not self._finished:
                self._callbacks.append(callback)
                return
        callback()

    def _deliver(self, result: Any, error: BaseException | None) -> None:
        if self.future.done():
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
            if finished and self.future.done() and not self.future.cancelled():
                raise
            raise Abandoned(self) from None


class _Thread:
    """One daemon thread that takes jobs until told to end."""

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
                continue
            if job is None:
                return
            job()
            del job  # an idle thread must not hold the last environment alive


class _Shift:
    """A thread's turn at what is queued: one job after the other, until there is none.

    Attributes:
        thread: whose turn it is.
        began: when it began with the job that it is at (``time.monotonic``, seconds); before its first, when it should
            have.
    """

    __slots__ = ("_take", "began", "thread")

    thread: _Thread

    def __init__(self, take: Callable[[_Shift], _Job | None]) -> None:
        self._take = take
        self.began = time.monotonic() + MANY * QUICK_S

    def __call__(self) -> None:
        while (job := self._take(self)) is not None:
            self.began = time.monotonic()
            job()


class Threads:
    """A pool without an upper bound of its own: the sessions bound it, each runs one piece of sync code at a time.

    Attributes:
        stall_s: seconds after which a thread that is still at the same job is not waited for.
    """

    inline = False

    def __init__(self, stall_s: float = QUICK_S) -> None:
        self.stall_s = stall_s
        self._mutex = threading.Lock()
        self._idle: list[_Thread] = []
        self._queued: deque[_Job] = deque()
        self._shifts: set[_Shift] = set()  # those that what is queued may wait for

    async def run(self, fn: Callable[..., Any], *args: Any, pace: Pace | None = None, **kwargs: Any) -> Any:
        """Run it in a pool thread, in the caller's context variables."""
        job = _Job(fn, args, kwargs, pace)
        if pace is None or not pace.quick:
            thread = self._thread()
            job.when_finished(lambda: self._put_back(thread))
            thread.jobs.put(job)
            return await job.result()
        job.waits = True
        with self._mutex:
            self._queued.append(job)
            shifts = [] if self._shifts else [self._new_shift()]
        try:
            if shifts:
                self._begin(shifts)
            else:
                self._look_later(job, self.stall_s)
            return await job.result()
        except Abandoned:
            if not self._take_back(job):
                raise
            raise asyncio.CancelledError from None  # it never began
        except RuntimeError:  # there is no thread to be had, or the code raised one
            self._take_back(job)
            raise

    def close(self) -> None:
        """Idle threads end by themselves."""

    def _look_later(self, job: _Job, after_s: float) -> None:
        job.loop.call_later(after_s, self._look_after, job, after_s, time.monotonic() + after_s)

    def _look_after(self, job: _Job, waited_s: float, due: float) -> None:
        """It has been queued for a while: if those that it waits for are slow, it need not wait."""
        now = time.monotonic()
        # A loop that comes late to this was busy itself: nobody else had the interpreter.
        allowed_s = self.stall_s if now - due < self.stall_s else MANY * self.stall_s
        with self._mutex:
            if not job.waits:
                return
            slow = [shift for shift in self._shifts if now - shift.began > allowed_s]
            self._shifts.difference_update(slow)
            # What else is queued may be as slow today.
            shifts = [self._new_shift() for _ in self._queued] if slow else []
        try:
            self._begin(shifts)
        finally:
            self._look_later(job, 2 * waited_s)

    def _new_shift(self) -> _Shift:
        shift = _Shift(self._take)
        self._shifts.add(shift)
        return shift

    def _begin(self, shifts: Sequence[_Shift]) -> None:
        """Have a thread for each.

        Raises:
            RuntimeError: the system has no more threads; those without one are as if they had not been made.
        """
        for number, shift in enumerate(shifts):
            try:
                shift.thread = self._thread()
            except RuntimeError:
                with self._mutex:
                    self._shifts.difference_update(shifts[number:])
                raise
            shift.thread.jobs.put(shift)

    def _take_back(self, job: _Job) -> bool:
        """Whether it was still queued; then it never runs."""
        with self._mutex:
            if not job.waits:
                return False
            self._queued.remove(job)
            job.waits = False
            return True

    def _take(self, shift: _Shift) -> _Job | None:
        """The shift's next job; None: it is over."""
        with self._mutex:
            if shift in self._shifts:
                if self._queued:
                    job = self._queued.popleft()
                    job.waits = False
                    return job
                self._shifts.remove(shift)
            self._idle.append(shift.thread)
            return None

    def _thread(self) -> _Thread:
        """One that does nothing else."""
        with self._mutex:
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
    """One thread for everything of one environment: SQLite connections, sync Playwright, tkinter need it."""

    inline = False

    def __init__(self) -> None:
        self._thread = _Thread("mcpenv-environment", None)

    async def run(self, fn: Callable[..., Any], *args: Any, pace: Pace | None = None, **kwargs: Any) -> Any:
        """Run it in the environment's thread, in the caller's context variables."""
        job = _Job(fn, args, kwargs)
        self._thread.jobs.put(job)
        return await job.result()

    def close(self) -> None:
        """End the thread after what is queued."""
        self._thread.jobs.put(None)


INLINE = Inline()
THREADS = Threads()
