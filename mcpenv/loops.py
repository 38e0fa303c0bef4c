"""Loops: how blocking methods such as ``env.step`` run coroutines, in scripts, in Jupyter and in threads.

Each thread has private event loops, made at the first need and closed with the thread; an environment keeps to the loop
that it first ran on, because clients and browsers are bound to theirs. Inside a running loop the private one is run
nested, in its place, for the duration of the call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# 3.12 and 3.13 count the task of a nested loop against the outer one; Python 3.11 keeps them apart by loop.
_swap_current_task = getattr(asyncio.tasks, "_swap_current_task", None)


class NoLoop:
    """A context manager in which this thread seems to run no event loop, whatever runs outside."""

    __slots__ = ("_outer", "_task")

    def __enter__(self) -> None:
        self._outer = outer = asyncio._get_running_loop()
        if outer is not None:
            self._task = _swap_current_task(outer, None) if _swap_current_task else None
            asyncio._set_running_loop(None)

    def __exit__(self, *exc: object) -> None:
        if self._outer is not None:
            asyncio._set_running_loop(self._outer)
            if _swap_current_task:
                _swap_current_task(self._outer, self._task)


class PrivateLoop:
    """An event loop that runs one coroutine at a time for blocking callers."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._mutex = threading.Lock()
        self._runner: int | None = None

    @property
    def closed(self) -> bool:
        """Whether its thread has ended."""
        return self._loop.is_closed()

    @property
    def running_here(self) -> bool:
        """Whether this thread is inside `run` already."""
        return self._runner == threading.get_ident()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; other threads wait until it is there."""
        with self._mutex:
            self._runner = threading.get_ident()
            try:
                return self._run(coroutine)
            finally:
                self._runner = None

    def close(self) -> None:
        """Close the loop, unless a thread is just running it."""
        if not self._loop.is_running() and not self._loop.is_closed():
            self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with NoLoop():
            return self._loop.run_until_complete(coroutine)


class _ThreadLoops(threading.local):
    """The loops of one thread: several only where environments are stepped from inside another's tools."""

    def __init__(self) -> None:
        self.loops: list[PrivateLoop] = []
        self.keeper = _Keeper(self.loops)

    def idle(self) -> PrivateLoop:
        for loop in self.loops:
            if not loop.running_here and not loop.closed:
                return loop
        loop = PrivateLoop()
        self.loops.append(loop)
        return loop


class _Keeper:
    """Closes a thread's loops when the thread's locals go."""

    def __init__(self, loops: list[PrivateLoop]) -> None:
        self._loops = loops

    def __del__(self) -> None:
        for loop in self._loops:
            loop.close()


_here = _ThreadLoops()


class Home:
    """The loop that one environment's coroutines run on when they are driven by blocking calls."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: PrivateLoop | None = None

    def drive(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result."""
        loop = self._loop
        if loop is None or loop.closed or loop.running_here:
            loop = _here.idle()
            if self._loop is None or self._loop.closed:
                self._loop = loop
        return loop.run(coroutine)


def drive_plain(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that is known to wait for nothing, without any loop (1 µs instead of 12)."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine waited although nothing in it is asynchronous")
