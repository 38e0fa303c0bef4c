"""The cycle collector of a server's process: it passes over what was imported, and looks early at what is new.

What is old it looks at as often as Python does, except where such a look takes long: then only when there may be more
garbage than there was.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .memory_in_use import MemoryInUse, memory_in_use

YOUNG, MIDDLE, OLD = 2_000, 40, 10
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; such looks before one at
those that survived them; and those before one at everything, which Python delays until there is a quarter more.
Python's own are 700, 10, 10. With more than 2,000, the first are no longer in the processor's caches."""

SOON, NEVER = 0, 1_000_000_000
"""In place of `OLD`: one look at everything is to be the next that is due; none is to come."""

LONG_S = 0.05
"""A look at everything that took longer than this is not taken again before `MORE` memory is in use."""

MORE, MUCH_MORE = 1.25, 2.0
"""Times what was in use after the last look at everything. At the second the next is due after one look at those that
survived, not ten; that there are a quarter more objects Python wants all the same."""

RARELY = 100
"""Times as long as it took to learn what is in use, before that is asked again: the C library looks at all holes."""


@contextmanager
def tuned_collector() -> Iterator[None]:
    """While a server runs, have the collector pass over what was imported, and look less often at the rest.

    Where the program has turned the collector off by a threshold of 0, it stays off.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what was imported, and is never garbage
    looks = _Looks()
    if before[0]:
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        gc.callbacks.append(looks)
    try:
        yield
    finally:
        if looks in gc.callbacks:  # a program may have cleared them
            gc.callbacks.remove(looks)
        if before[0] and _ours():
            gc.set_threshold(*before)
        gc.unfreeze()


class _Looks:
    """Says when looks at everything are due. Called by the collector, at each look.

    Python counts what survives, and neither how large it is nor what is freed later. A server that makes as much as it
    frees has everything looked at again and again: with 9,000 sessions a second, in which nothing is answered. One
    that holds a thousand games of a hundred objects and a megabyte in cycles, and then others, has gigabytes of them
    before ten looks at those that survived are over.
    """

    def __init__(self) -> None:
        self._ask_at = 0.0
        self._left = self._in_use()  # after the last look at everything
        self._was_long = False
        self._began = 0.0
        self._since = 0

    def __call__(self, phase: str, about: dict[str, int]) -> None:
        generation = about["generation"]
        if generation == 0:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif generation == 2:
            self._was_long = time.perf_counter() - self._began > LONG_S
            self._left, self._since = self._in_use(), 0
            self._after(NEVER if self._was_long and self._left is not None else OLD)
        elif self._left is not None:
            self._since += 1
            if time.perf_counter() < self._ask_at:
                return
            now = self._in_use()
            if now is None or now.exceeds(self._left, MUCH_MORE):
                self._after(SOON)
            elif self._was_long and self._since >= OLD:
                self._since = 0
                if now.exceeds(self._left, MORE):
                    self._after(OLD)

    def _in_use(self) -> MemoryInUse | None:
        began = time.perf_counter()
        now = memory_in_use()
        ended = time.perf_counter()
        self._ask_at = ended + RARELY * (ended - began)
        return now

    def _after(self, looks: int) -> None:
        if _ours():
            gc.set_threshold(YOUNG, MIDDLE, looks)


def _ours() -> bool:
    """Whether nobody else has set thresholds meanwhile."""
    young, middle, old = gc.get_threshold()
    return (young, middle) == (YOUNG, MIDDLE) and old in (SOON, OLD, NEVER)


__all__ = ["tuned_collector"]
