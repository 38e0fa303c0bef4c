"""The cycle collector of a server's process: it passes over what was imported, and looks early at what is new."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = 2_000, 40, 10
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; such looks before one at
those that survived them; and those before one at everything, which Python delays until there is a quarter more.
Python's own are 700, 10, 10. With more than 2,000, the first are no longer in the processor's caches."""


@contextmanager
def tuned_collector() -> Iterator[None]:
    """While a server runs, have the collector pass over what was imported, and look less often at the rest.

    Where the program has turned the collector off by a threshold of 0, it stays off.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what was imported, and is never garbage
    if before[0]:
        gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        if gc.get_threshold() == THRESHOLDS:
            gc.set_threshold(*before)
        gc.unfreeze()


__all__ = ["tuned_collector"]
