"""The event loops on which blocking methods such as ``env.step`` run coroutines.

Blocking methods work in scripts, in Jupyter and in threads. Each environment takes a private loop at its first blocking
call. It keeps that loop, because clients and browsers are bound to their loop. The first 64 environments that live at
the same time have one each. Further ones share the loop of the thread that makes their first call, so that threads
which step different environments do not wait for each other. Inside a running loop, the private loop runs nested in its
place for the duration of the call.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# 3.12 and 3.13 count the task of a nested loop against the outer one; Python 3.11 keeps them apart by loop.
_swap_current_task = getattr(asyncio.tasks, "_swap_current_task", None)


def without_loop(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Return the result of ``fn``, which does not see that an event loop runs in this thread."""
    outer = asyncio._get_running_loop()
    if outer is None:
        return fn(*args, **kwargs)
    task = _swap_current_task(outer, None) if _swap_current_task else None
    asyncio._set_running_loop(None)
    try:
        return fn(*args, **kwargs)
    finally:
        asyncio._set_running_loop(outer)
        if _swap_current_task:
            _swap_current_task(outer, task)


class Inline:
    """The runner that runs code in the caller's thread, for an environment used in process.

    The running event loop is hidden meanwhile, as it is in a worker thread, because ``asyncio.run`` and sync Playwright
    refuse to work in a thread with a running loop.
    """

    inline = True

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``fn`` and return its result."""
        return without_loop(fn, *args, **kwargs)

    def close(self) -> None:
        """Do nothing, as there is no thread to end."""


INLINE = Inline()


class PrivateLoop:
    """An event loop that runs one coroutine at a time for blocking callers.

    Attributes:
        users: the number of environments that use it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._mutex = threading.Lock()
        self._runner: int | None = None
        self.users = 0

    @property
    def running_here(self) -> bool:
        """True if this thread is already inside `run`."""
        return self._runner == threading.get_ident()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine and return its result. Calls from other threads wait until it has ended.

        If an exception such as `KeyboardInterrupt` leaves the loop while the coroutine waits, it is cancelled.
        """
        with self._mutex:
            self._runner = threading.get_ident()
            task = self._loop.create_task(coroutine)
            try:
                # asyncio refuses to run a loop in a thread with a running loop. The outer one is hidden meanwhile.
                result: T = without_loop(self._loop.run_until_complete, task)
                return result
            finally:
                if not task.done():
                    # Otherwise it would go on in the next call, such as the one that closes the environment.
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        without_loop(self._loop.run_until_complete, task)
                self._runner = None

    def close(self) -> None:
        """Close the loop for good, unless a thread is running it: at exit a daemon thread may still do so."""
        if self._mutex.acquire(blocking=False):  # and never released: who comes later waits for the exit
            self._loop.close()


class _Loops:
    """The private loops of the process. They are reused, and closed at exit."""

    MAX_OWN = 64
    """Environments that have a loop of their own. A loop takes three file descriptors."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._all: list[PrivateLoop] = []
        self._free: list[PrivateLoop] = []
        self._uses: set[_Use] = set()
        # Filled without the mutex: the garbage collector may free a runner in the thread that holds it. As the callback
        # of a weak reference this is no Python code, in which a `KeyboardInterrupt` would be printed and dropped.
        self._left: deque[_Use] = deque()
        self._of_thread = threading.local()

    def assign(self, runner: BlockingRunner) -> PrivateLoop:
        """Assign a loop to a runner, and return the loop."""
        with self._mutex:
            # Another thread may have assigned one since the caller looked.
            if runner.loop is None:
                has_room = self._free_one() or len(self._all) < self.MAX_OWN
                self._give(runner, self._take() if has_room else self._shared())
            assert runner.loop is not None
            return runner.loop

    def _give(self, runner: BlockingRunner, loop: PrivateLoop) -> None:
        runner.use = _Use(runner, self._left.append)
        runner.use.loop = runner.loop = loop
        self._uses.add(runner.use)

    def release(self, use: _Use) -> None:
        """Mark a loop as left by its runner."""
        self._left.append(use)

    @contextmanager
    def borrowed(self) -> Iterator[PrivateLoop]:
        """Yield a loop for one call inside another one."""
        # No shared loop, even above the limit: this thread may be running its shared loop.
        with self._mutex:
            loop = self._take()
        try:
            yield loop
        finally:
            with self._mutex:
                self._leave(loop)

    def close(self) -> None:
        """Close the loops that no thread runs."""
        for loop in self._all:
            loop.close()

    def _take(self) -> PrivateLoop:
        """Return an unused loop."""
        if self._free_one():
            loop = self._free.pop()
        else:
            loop = PrivateLoop()
            self._all.append(loop)
        loop.users += 1
        return loop

    def _shared(self) -> PrivateLoop:
        """Return this thread's loop, which environments share if this thread makes their first call."""
        if getattr(self._of_thread, "runner", None) is None:
            self._of_thread.runner = BlockingRunner()  # freed when the thread ends
            self._give(self._of_thread.runner, self._take())
        loop: PrivateLoop = self._of_thread.runner.loop
        loop.users += 1
        return loop

    def _free_one(self) -> bool:
        """Collect the loops that were left, and return True if one is free."""
        while self._left:
            use = self._left.popleft()
            if use in self._uses:  # else `release` was called, and the runner was freed later
                self._uses.discard(use)
                self._leave(use.loop)
        return bool(self._free)

    def _leave(self, loop: PrivateLoop) -> None:
        loop.users -= 1
        if loop.users == 0:
            self._free.append(loop)


class _Use(weakref.ref["BlockingRunner"]):
    """The use of a loop by a runner."""

    loop: PrivateLoop


class BlockingRunner:
    """The loop on which one environment's coroutines run in blocking calls.

    Attributes:
        loop: None until the first call.
    """

    __slots__ = ("__weakref__", "loop", "use")

    def __init__(self) -> None:
        self.loop: PrivateLoop | None = None
        self.use: _Use | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result."""
        loop = self.loop or _LOOPS.assign(self)
        if not loop.running_here:
            return loop.run(coroutine)
        # A loop cannot run inside itself, so a blocking call in one of its coroutines borrows another loop.
        with _LOOPS.borrowed() as other:
            return other.run(coroutine)

    def release(self) -> None:
        """Free the loop for others. A later call takes another one."""
        use, self.use, self.loop = self.use, None, None
        if use is not None:
            _LOOPS.release(use)


_LOOPS = _Loops()
atexit.register(_LOOPS.close)
