"""The garbage collector's thresholds in a server's process, with imported objects put aside."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = YOUNG, MIDDLE, OLD = 2_000, 40, 10
"""Python's are 700, 10, 10. With more than 2,000, young objects are no longer in the processor's caches when they are
scanned. Full collections, which grow with the number of sessions, are a tenth as frequent as Python's."""


@contextmanager
def tuned_gc(*, forked: bool = False) -> Iterator[None]:
    """Tune the garbage collector of this process while a server runs, and restore it.

    A disabled collector (threshold 0), thresholds set meanwhile, and objects that the program has frozen stay so.
    With ``forked``, objects that this process has made since its fork are frozen besides those.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    if forked or not frozen:
        gc.collect()
        gc.freeze()  # imported objects are never garbage
    if before[0]:
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        if before[0] and gc.get_threshold() == THRESHOLDS:
            gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
