"""Handlers of signals, held back in the main thread while it does what must be whole.

Python runs them there between any two instructions. What one raises (Ctrl-C, an alarm's error) would leave a turn
taken, a lock held or a frame half sent, and one that uses the client whose call it interrupts would wait for itself.
So each is replaced for the time of a call by a guard that remembers it, and run when that is over; a call that waits is
told, so that none waits with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

# What the module signal has, without the enums it makes of each number, at a 20th of the price: a call looks at all.
from _signal import getsignal as _handler_of  # type: ignore[import-not-found]
from _signal import signal as _set_handler
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Handler = Callable[[int, "FrameType | None"], object]
T = TypeVar("T")

_NUMBERS = sorted(int(number) for number in signal.valid_signals())


class Due(BaseException):
    """A handler is to be run: who waits leaves what it has to another thread, and lets go."""


class _Guard:
    """In the place of a handler: holds it back, or is as good as it where an interrupt has left this behind."""

    __slots__ = ("handler", "number")

    def __init__(self, number: int, handler: Handler) -> None:
        self.number = number
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not _now.depth:
            self.handler(number, frame)
            return
        if self not in _now.due:
            _now.due.append(self)
        if frame is not None and frame.f_code is wait.__code__:
            raise Due


class _Now:
    """How it stands in the main thread, the only one in which handlers run.

    Attributes:
        thread: its identity, as long as handlers are held back.
        depth: how often they are: what is freed meanwhile may have a finalizer that calls another client.
        guards: what stands in the place of handlers.
        due: those of them whose signals came.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.depth = 0
        self.guards: list[_Guard] = []
        self.due: list[_Guard] = []


_now = _Now()


def is_main() -> bool:
    """Whether handlers of signals may run in this thread."""
    return threading.get_ident() == threading.main_thread().ident


def hold_back() -> bool:
    """Run no handler until `let_go`. Whether this is the main thread: there are none in others."""
    if not is_main():
        return False
    if _now.depth:
        _now.depth += 1
        return True
    try:
        _now.guards = guards = [
            handler if isinstance(handler, _Guard) else _Guard(number, handler)
            for number in _NUMBERS
            if callable(handler := _handler_of(number))
        ]
        for guard in guards:
            _set_handler(guard.number, guard)
        _now.thread = threading.get_ident()
        _now.depth = 1
    except ValueError:
        return False  # the main thread of a subinterpreter, in which no handlers run
    except BaseException:
        let_go()
        raise
    return True


def let_go() -> None:
    """Have handlers run again, and at once those whose signals came meanwhile. In the main thread.

    Raises:
        BaseException: what one of them raises.
    """
    if _now.depth > 1:
        _now.depth -= 1
        return
    _now.depth = 0  # first: whatever comes from here on is run, by a guard if need be
    try:
        for guard in _now.guards:
            if _handler_of(guard.number) is guard:
                _set_handler(guard.number, guard.handler)
    finally:
        _run_the_due()


def are_held() -> bool:
    """Whether this thread holds them back."""
    return _now.depth > 0 and threading.get_ident() == _now.thread


def wait(ready: Callable[[int], T], milliseconds: int) -> T:
    """While handlers are held back: ``ready(milliseconds)``, which only waits.

    A signal ends it if ``ready`` is no Python function. One that comes in the moment before it waits is seen when it
    ends: the milliseconds are not to be many.

    Raises:
        Due: a handler is to be run.
    """
    # Nothing here needs to be whole: a guard that is called in this frame raises. What the collector calls has others.
    if _now.due:
        raise Due
    return ready(milliseconds)


def _run_the_due() -> None:
    while _now.due:
        guard = _now.due.pop(0)
        try:
            guard.handler(guard.number, sys._getframe())
        finally:
            _run_the_due()  # the others, whatever this one raises


def _in_a_child() -> None:
    """After a fork by another thread: whatever the main thread was at, it is not here."""
    if _now.guards:
        _now.depth, _now.due = 0, []
        with contextlib.suppress(ValueError):  # a fork by a subinterpreter
            let_go()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_a_child)

__all__ = ["Due", "are_held", "hold_back", "is_main", "let_go", "wait"]
