"""Who looks after connections that nobody waits at: from the shared loop, twice a second."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Protocol

from .shared_loop import SHARED_LOOP

PERIOD_S = 0.5
"""Seconds until an idle connection answers a ping, at most."""


class Kept(Protocol):
    """What is looked after."""

    def tend(self, passed_s: float) -> bool:
        """Do what is to be done, without waiting, so many seconds after the last time; whether there will be more."""


def keep(connection: Kept) -> None:
    """Have `Kept.tend` called now and then, until it says that it is enough or nobody has the connection any more."""
    SHARED_LOOP.call_soon(_tend_later, weakref.ref(connection), time.monotonic())


def _tend_later(kept: weakref.ref[Kept], last: float) -> None:
    asyncio.get_running_loop().call_later(PERIOD_S, _tend, kept, last)


def _tend(kept: weakref.ref[Kept], last: float) -> None:
    connection = kept()
    now = time.monotonic()
    # A process that was stopped for an hour has not waited an hour for a pong.
    if connection is not None and connection.tend(min(now - last, 2 * PERIOD_S)):
        _tend_later(kept, now)


__all__ = ["keep"]
