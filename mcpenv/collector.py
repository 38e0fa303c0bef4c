"""The cycle collector of a server's process: it looks once at what sessions make, and seldom at all that there is."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

YOUNG_OBJECTS = 2_000
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; Python's own is 700.
Those of later are no longer in the processor's caches."""

NEVER = 2**31 - 1
"""Looks at the youngest before one at the older: Python's own is 10."""

MUCH_BYTES = 64 * 1024 * 1024
"""Growth of the process after which it looks at everything, if that is a quarter of what it was, or more."""

ASK_EVERY_S = 0.25
"""Seconds between two moments at which it may look at everything."""

AT_MOST = 0.02
"""Share of the time that looks at everything take while they free little, unless the process has become twice as large.
"""

WORTH = 0.1
"""Share of what the process grew by of which a look at everything has freed much."""


@contextmanager
def tuned_collector() -> Iterator[None]:
    """While the running event loop serves, have the collector pass over what it has looked at once.

    Records live as long as their episode. As Python sets it, the collector goes through all of them again and again:
    7 % of the time of a step with ten sessions, and half of it with 10,000, whose objects are in no cache. What has no
    cycles, as nearly everything here, is freed without it. Cycles of authors' that become garbage late are found when
    the process has grown: then it looks at everything but what was imported. So does ``gc.collect()``.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what was imported, and is never garbage
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
    growth = _Growth(asyncio.get_running_loop())
    try:
        yield
    finally:
        growth.end()
        gc.set_threshold(*before)
        gc.unfreeze()


class _Growth:
    """Looks at everything when the process has grown."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._resident = resident_bytes()  # after the last look
        self._rests_until = 0.0
        self._next = loop.call_later(ASK_EVERY_S, self._ask)

    def _ask(self) -> None:
        resident = resident_bytes()
        rests = time.monotonic() < self._rests_until
        if resident - self._resident >= max(MUCH_BYTES, self._resident if rests else self._resident / 4):
            self._look(resident)
        self._next = self._loop.call_later(ASK_EVERY_S, self._ask)

    def _look(self, resident: int) -> None:
        began = time.monotonic()
        gc.collect()
        ended = time.monotonic()
        left = resident_bytes()
        if resident - left < WORTH * (resident - self._resident):
            self._rests_until = ended + (ended - began) / AT_MOST
        self._resident = left

    def end(self) -> None:
        """Ask no more."""
        self._next.cancel()


def resident_bytes() -> int:
    """Memory of this process. Where the system does not say what that is now: how much it was at most."""
    with suppress(FileNotFoundError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return sys.getallocatedblocks() * 64  # about; of small objects only
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


__all__ = ["tuned_collector"]
