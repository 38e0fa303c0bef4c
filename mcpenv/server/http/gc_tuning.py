"""The garbage collector's settings in a server's process: skip what was imported, and scan old objects less often.

Full collections run at Python's rate unless they are slow; then only after memory use has grown.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

YOUNG, MIDDLE, OLD = 2_000, 40, 10
"""Thresholds of the three generations; Python's are 700, 10, 10. With more than 2,000, young objects are no longer in
the processor's caches when they are scanned. Python delays a full collection until there are a quarter more objects."""

SOON, NEVER = 0, 1_000_000_000
"""Thresholds in place of `OLD`. With the first, the next collection is a full one; with the second, none is."""

SLOW_S = 0.05
"""A full collection that took longer is not repeated before memory use has grown by `GROWN`."""

GROWN, DOUBLED = 1.25, 2.0
"""Multiples of the memory in use after the last full collection. At the second, the next one is due at once."""

POLL_SHARE = 100
"""Memory use is polled so rarely that polling takes at most one part in so many of run time."""


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Tune the garbage collector of this process while a server runs, and restore it.

    A collector that the program has disabled by a threshold of 0 stays disabled.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # imported objects are never garbage
    policy = _Policy()
    if before[0]:
        gc.set_threshold(YOUNG, MIDDLE, OLD)
        gc.callbacks.append(policy)
    try:
        yield
    finally:
        if policy in gc.callbacks:  # a program may have cleared them
            gc.callbacks.remove(policy)
        if before[0] and _ours():
            gc.set_threshold(*before)
        gc.unfreeze()


class MemoryInUse(NamedTuple):
    """Allocated memory, without what was freed and not returned to the system.

    Attributes:
        blocks: of Python's allocator, each of at most 512 bytes.
        bytes: of the C library's allocator, which has all others.
    """

    blocks: int
    bytes: int

    def exceeds(self, before: MemoryInUse, times: float) -> bool:
        """Return True if either exceeds so many times its former value."""
        return self.blocks > before.blocks * times or self.bytes > before.bytes * times


class _Policy:
    """A callback of the collector that sets when the next full collection is due.

    Python counts the objects that survive, and neither their size nor what is freed later. With 1.5 million live
    objects, full collections would take a second again and again; and large garbage in few objects would pile up.
    """

    def __init__(self) -> None:
        self._poll_at = 0.0
        self._left = self._in_use()  # after the last full collection; None: unknown on this platform
        self._was_slow = False
        self._began = 0.0
        self._since = 0

    def __call__(self, phase: str, about: dict[str, int]) -> None:
        generation = about["generation"]
        if generation == 0:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif generation == 2:
            self._was_slow = time.perf_counter() - self._began > SLOW_S
            self._left, self._since = self._in_use(), 0
            self._set_old(NEVER if self._was_slow and self._left is not None else OLD)
        elif self._left is not None:
            self._since += 1
            if time.perf_counter() < self._poll_at:
                return
            now = self._in_use()
            if now is None or now.exceeds(self._left, DOUBLED):
                self._set_old(SOON)
            elif self._was_slow and self._since >= OLD:
                self._since = 0
                if now.exceeds(self._left, GROWN):
                    self._set_old(OLD)

    def _in_use(self) -> MemoryInUse | None:
        began = time.perf_counter()
        now = memory_in_use()
        ended = time.perf_counter()
        self._poll_at = ended + POLL_SHARE * (ended - began)
        return now

    def _set_old(self, threshold: int) -> None:
        if _ours():
            gc.set_threshold(YOUNG, MIDDLE, threshold)


def _ours() -> bool:
    """Return True if the thresholds are those of this module, and the program has not changed them."""
    young, middle, old = gc.get_threshold()
    return (young, middle) == (YOUNG, MIDDLE) and old in (SOON, OLD, NEVER)


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _find_mallinfo2() -> Callable[[], Any] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return None
    function.restype, function.argtypes = _Mallinfo2, ()
    return function


_mallinfo2 = _find_mallinfo2()


def memory_in_use() -> MemoryInUse | None:
    """Return the memory in use; None if it is unknown: another C library, or another allocator in its place."""
    if _mallinfo2 is None:
        return None
    info = _mallinfo2()
    blocks = sys.getallocatedblocks()
    if not info.uordblks or not blocks:  # an allocator was loaded before it, or Python's is turned off
        return None
    return MemoryInUse(blocks, info.uordblks + info.hblkhd)


__all__ = ["tuned_gc"]
