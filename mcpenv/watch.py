"""Watchers: who waits for an episode's end."""

from __future__ import annotations

import asyncio
from enum import Enum


class Ending(Enum):
    """How a watched episode came to its end."""

    DONE = "done"
    """It terminated or was truncated."""
    SUPERSEDED = "superseded"
    """A reset began another."""
    CLOSED = "closed"
    """Its session ended."""


class Watchers:
    """Those who wait for the running episode to end. Holds no turn; told from whichever thread ends it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Ending]] = []

    async def ending(self, timeout_s: float | None) -> Ending | None:
        """How the running episode ends; None if it has not within ``timeout_s`` seconds."""
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def tell(self, ending: Ending) -> None:
        """The running episode has ended."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future, ending)


def _settle(future: asyncio.Future[Ending], ending: Ending) -> None:
    if not future.done():
        future.set_result(ending)
