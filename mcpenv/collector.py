"""The cycle collector of a server's process: it looks at what sessions make, and not every fifty steps."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; Python's own is 700."""


def tune_collector() -> None:
    """Have it pass over what was imported, and look less often.

    Records live as long as their episode. As Python sets it, the collector goes through all of them again and again,
    which was a fifth of the time of a step. What has no cycles, as nearly everything here, is freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
