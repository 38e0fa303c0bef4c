"""Threads that go on with what the main thread began for a blocking client.

A coroutine of a blocking client is driven by the thread that calls, without an event loop. The main thread, in which
handlers of signals run, holds them back while it does what must be whole (see `handlers`). What may take long, and what
is under way when one is due, goes on in a thread in which none runs, and the main thread only waits for it.
"""

from __future__ import annotations

import contextvars
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, Generic, TypeVar

from . import handlers

T = TypeVar("T")
Stop = Callable[[], object]


class Abandoned(BaseException):
    """Nobody waits for this job any more; it waits for nothing and begins nothing."""


class Call(Generic[T]):
    """A coroutine that runs in one thread while another waits for its result."""

    __slots__ = ("_coroutine", "_done", "_error", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._error: BaseException | None = None
        self._result: T
        # Half the price of a future, which brings a condition and a callback in another turn of the loop.
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> T:
        """In the caller's thread: its result. A signal's handler may interrupt it."""
        while not self._done.acquire(timeout=1.0):  # a signal that came just before it waited has its handler run now
            if sys.is_finalizing():
                raise RuntimeError("the interpreter ends, and with it the thread that would do this")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        return self._result


class Job(Call[T]):
    """A coroutine that waits for no event loop, gone on with by a porter while the main thread waits for its result."""

    __slots__ = ("_cancelled", "_context", "_mutex", "_stop")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__(coroutine)
        self._context = contextvars.copy_context()
        self._mutex = threading.Lock()
        self._cancelled = False
        self._stop: Stop | None = None

    def play(self) -> Stop:
        """In a porter: run it; gives what tells the main thread."""
        _here.job = self
        try:
            self._result = self._context.run(drive, self._coroutine)
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            self._error = error
        finally:
            _here.job = None
        return self._done.release

    def cancel(self) -> None:
        """In a porter: nobody waits for it any more."""
        with self._mutex:
            self._cancelled = True
            stop = self._stop
        if stop is not None:
            stop()

    def on_cancel(self, stop: Stop | None) -> None:
        """What ends that for which it will wait next; None if it does not wait for long.

        Raises:
            Abandoned: it is cancelled already.
        """
        with self._mutex:
            self._stop = stop
            if self._cancelled:
                raise Abandoned


class _Porter:
    """A thread that does one thing after another, until nobody has this object any more."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[_Todo | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self.todo,), name="mcpenv-client call", daemon=True).start()

    def __del__(self) -> None:
        if hasattr(self, "todo"):  # not if an interrupt came first
            self.todo.put(None)


_Todo = tuple[_Porter, Callable[[], "Stop | None"]]


def _serve(todo: queue.SimpleQueue[_Todo | None]) -> None:
    while (given := todo.get()) is not None:
        porter, do = given
        tell = do()
        del given, do  # and with it the client, while nothing is to be done
        # Before the main thread knows, so that its next call finds this one.
        if len(_FREE) < MAX_FREE:
            _FREE.append(porter)
        del porter
        if tell is not None:
            tell()
        del tell


MAX_FREE = 4
"""Porters that wait for work; only handlers of signals, and interrupts, need a second."""

_FREE: deque[_Porter] = deque()
_here = threading.local()


def current() -> Job[Any] | None:
    """The job that this thread does for the main thread, if it does."""
    job: Job[Any] | None = getattr(_here, "job", None)
    return job


_WaitedFor = tuple[Job[Any], FrameType]
_WAITED_FOR: list[_WaitedFor] = []
"""Jobs of the main thread, and where it waits for them."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """In the thread that calls: the coroutine's result. What interrupts the wait for a porter cancels it."""
    if _WAITED_FOR and handlers.is_main():
        _cancel_the_forgotten()
    try:
        asked = coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    if asked is not _ELSEWHERE:
        coroutine.close()
        raise RuntimeError(_NO_LOOP)
    # With the handlers held back.
    job = Job(coroutine)
    waited_for = (job, sys._getframe())
    _WAITED_FOR.append(waited_for)
    try:
        try:
            _give(job.play)
        finally:
            handlers.let_go()
        result = job.wait()
    except BaseException:
        _give(job.cancel)  # of no effect if it is the coroutine that raised
        _WAITED_FOR.remove(waited_for)  # not if another interrupt came before
        raise
    else:
        _WAITED_FOR.remove(waited_for)
        return result
    finally:
        del waited_for  # it holds this frame, which holds it


def is_forgotten(job: Job[Any]) -> bool:
    """From any thread: nobody waits for it, since a second interrupt came before the first had cancelled it."""
    return any(waited_for[0] is job and _has_ended(waited_for[1]) for waited_for in list(_WAITED_FOR))


def _cancel_the_forgotten() -> None:
    for waited_for in list(_WAITED_FOR):
        if _has_ended(waited_for[1]):
            _give(waited_for[0].cancel)
            _WAITED_FOR.remove(waited_for)


def _has_ended(frame: FrameType) -> bool:
    try:
        frame.clear()
    except RuntimeError:  # it runs; or a handler has interrupted it, and does
        return False
    return True


class _Elsewhere:
    """What a coroutine awaits to be gone on with by a porter. Handlers are held back then."""

    def __await__(self) -> Generator[_Elsewhere, None, None]:
        yield self


_ELSEWHERE = _Elsewhere()


_NO_LOOP = "a blocking client waited for an event loop, and there is none"


async def in_a_porter(*, holds: bool = False) -> Job[Any] | None:
    """Go on where no handler runs.

    Args:
        holds: whether the caller holds handlers back. It does not any more, if it goes on in a porter.

    Returns:
        The job of this thread, if it is a porter.

    Raises:
        Abandoned: the job was cancelled before it was gone on with.
    """
    job = current()
    # At the end of the interpreter, no thread but the main one runs any more.
    if job is None and not sys.is_finalizing() and (holds or handlers.hold_back()):
        await _ELSEWHERE
        job = current()
        assert job is not None
        job.on_cancel(None)
    return job


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """In a porter: the result of a coroutine of which nothing waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise RuntimeError(_NO_LOOP)


def _give(do: Callable[[], Stop | None]) -> None:
    # Each line may be the last before an interrupt: at worst a porter is left without work.
    try:
        porter = _FREE.pop()
    except IndexError:
        porter = _Porter()
    porter.todo.put((porter, do))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_FREE.clear)

__all__ = ["Abandoned", "Call", "Job", "current", "in_a_porter", "is_forgotten", "run"]
