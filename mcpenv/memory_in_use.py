"""The memory that a process uses, without what it has freed and not given back. Opens no file."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class MemoryInUse(NamedTuple):
    """What is in use.

    Attributes:
        blocks: of Python's allocator, which has those of at most 512 bytes.
        bytes: of the C library's, which has the others.
    """

    blocks: int
    bytes: int

    def exceeds(self, before: MemoryInUse, times: float) -> bool:
        """Whether either is more than so many times what it was."""
        return self.blocks > before.blocks * times or self.bytes > before.bytes * times


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _found() -> Callable[[], Any] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return None
    function.restype, function.argtypes = _Mallinfo2, ()
    return function


_mallinfo2 = _found()


def memory_in_use() -> MemoryInUse | None:
    """What is in use now; None where that cannot be told: another C library, or another allocator in its place."""
    if _mallinfo2 is None:
        return None
    info = _mallinfo2()
    blocks = sys.getallocatedblocks()
    if not info.uordblks or not blocks:  # an allocator was loaded before it, or Python's is turned off
        return None
    return MemoryInUse(blocks, info.uordblks + info.hblkhd)
