"""The division of a pool's places among the plays that run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from .backend import PoolError


@dataclass(eq=False)
class Part:
    """The part of a pool that one play uses.

    Attributes:
        at_once: returns the number of shares that would fill the pool.
        woken: set when it may be possible to begin another share, or there is something else to do.
        running: its running shares.
        waits: True while it has a share to begin, and waits for a place.
        closing: True while its running shares are stopped.
        gone: set when it has ended.
        logged: True if the pool's checkpoint has it.
    """

    at_once: Callable[[], int]
    woken: asyncio.Event
    running: int = 0
    waits: bool = False
    closing: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    logged: bool = False

    @property
    def used(self) -> float:
        """The fraction of the pool that it uses."""
        return self.running / self.at_once() if self.running else 0.0


class Division:
    """Gives each free place to the waiting play with the smallest part of the pool.

    A play whose caller is busy does not wait for places, so that another one can run inside the caller's loop.
    """

    def __init__(self) -> None:
        self._parts: set[Part] = set()

    def join(self, at_once: Callable[[], int], woken: asyncio.Event, logged: bool) -> Part:
        """Return the part of a new play, which is empty."""
        part = Part(at_once, woken, logged=logged)
        self._parts.add(part)
        return part

    def runs(self, *, logged: bool) -> bool:
        """Return True if a play runs that the pool's checkpoint has, or one that it does not have."""
        return any(each.logged is logged for each in self._parts)

    def leave(self, part: Part) -> None:
        """Remove a play that ended."""
        self._parts.discard(part)
        part.gone.set()
        self.changed()

    def may_begin(self, part: Part) -> bool:
        """Return True if a play may begin a share now."""
        if sum(each.used for each in self._parts) + 1 / max(part.at_once(), 1) > 1.0 + 1e-9:
            return False
        return all(each.used >= part.used for each in self._parts if each.waits)

    def wait(self, part: Part, waits: bool) -> None:
        """Record if a play waits for a place. If it does not any more, others may begin."""
        part.waits, before = waits, part.waits
        if before and not waits:
            self.changed()

    def changed(self) -> None:
        """Wake the plays that wait for a place."""
        for each in self._parts:
            if each.waits:
                each.woken.set()

    async def ended(self) -> None:
        """Wait until the plays that are being closed are closed.

        Raises:
            PoolError: a play runs.
        """
        for _ in range(3):  # the event loop closes the generator of a loop that was left
            await asyncio.sleep(0)
        while self._parts:
            if any(not each.closing for each in self._parts):
                raise PoolError(
                    "reset_all() and step_all() cannot run beside a rollout of the same pool; end the rollout, close "
                    "the iterator of play(), or use another pool"
                )
            await next(iter(self._parts)).gone.wait()
