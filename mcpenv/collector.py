"""The cycle collector of a server's process: it looks once at what sessions make, and seldom at all that there is."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

YOUNG_OBJECTS = 2_000
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; Python's own is 700.
Those of later are no longer in the processor's caches."""

MANY_OBJECTS = 1_000_000
"""Objects made after which it looks at everything, if there are no more than that; else as many as there are."""

MUCH_BYTES = 64 * 1024 * 1024
"""Growth of the process after which it looks at everything, if that is a quarter of what it was, or more."""

ASK_EVERY_S = 0.25
"""Seconds between two moments at which it may look at everything."""

AT_MOST = 0.02
"""Share of the time that looks at everything take while they find little, unless the process has become twice as large.
"""

WORTH = 0.1
"""Share of what was made, in objects or in bytes, of which a look at everything has found much if it freed that."""


@contextmanager
def tuned_collector() -> Iterator[None]:
    """While the running event loop serves, have the collector pass over what it has looked at once.

    Records live as long as their episode. As Python sets it, the collector goes through all of them again and again:
    7 % of the time of a step with ten sessions, and half of it with 10,000, whose objects are in no cache. What has no
    cycles, as nearly everything here, is freed without it. Cycles of authors' that became garbage late are found when
    the process has grown, or as many objects have been made as there were: then it looks at everything. So does
    ``gc.collect()``.
    """
    before = gc.get_threshold()
    aside = _Aside(asyncio.get_running_loop())
    aside.look_at_everything()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.callbacks.append(aside)
    aside.ask()
    try:
        yield
    finally:
        aside.end()
        gc.callbacks.remove(aside)
        gc.set_threshold(*before)
        gc.unfreeze()


class _Aside:
    """What is put aside: Python's permanent generation, which it passes over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: asyncio.TimerHandle | None = None
        # Of the last look at everything, and since.
        self._looks = 0
        self._objects = 0
        self._resident = 0
        self._not_before = 0.0

    def __call__(self, phase: str, about: dict[str, Any]) -> None:
        if phase == "stop":
            self._looks += 1
            gc.freeze()
        elif about["generation"] == 2:  # somebody asks for a look at everything
            gc.unfreeze()

    def look_at_everything(self) -> None:
        """Free all cycles that are garbage."""
        made, grown = self._looks * YOUNG_OBJECTS, resident_bytes()
        began = time.monotonic()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        ended = time.monotonic()
        self._looks, self._objects, resident = 0, gc.get_freeze_count(), resident_bytes()
        worth_it = found > WORTH * made or grown - resident > WORTH * (grown - self._resident)
        self._not_before = ended if worth_it else ended + (ended - began) / AT_MOST
        self._resident = resident

    def ask(self) -> None:
        """Look at everything if it is time, now and from now on."""
        if self._is_time():
            self.look_at_everything()
        self._next = self._loop.call_later(ASK_EVERY_S, self.ask)

    def _is_time(self) -> bool:
        if not self._looks:
            return False
        grew = resident_bytes() - self._resident
        if time.monotonic() < self._not_before:
            return grew >= max(MUCH_BYTES, self._resident)
        many = max(MANY_OBJECTS, self._objects)
        return grew >= max(MUCH_BYTES, self._resident / 4) or self._looks * YOUNG_OBJECTS >= many

    def end(self) -> None:
        """Ask no more."""
        if self._next is not None:
            self._next.cancel()


def resident_bytes() -> int:
    """Memory of this process; 0 where the system has no ``/proc`` that says so."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


__all__ = ["tuned_collector"]
