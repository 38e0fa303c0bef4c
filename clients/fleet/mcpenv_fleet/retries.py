"""Try again, a bounded number of times, with a growing pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

logger = logging.getLogger("mcpenv_fleet")

T = TypeVar("T")


@dataclass(frozen=True)
class Retries:
    """The number of tries, and the pauses between them.

    Attributes:
        tries: maximum number of tries.
        first_pause_s: seconds before the second try. Each further pause is twice as long.
    """

    tries: int = 3
    first_pause_s: float = 1.0

    async def run(self, what: str, attempt: Callable[[], Awaitable[T]], may_repeat: Callable[[Exception], bool]) -> T:
        """Return the result of ``attempt``. Log every failed try.

        Raises:
            Exception: the exception of the last try, or the first one that ``may_repeat`` refuses.
        """
        pause = self.first_pause_s
        for number in range(1, self.tries + 1):
            try:
                return await attempt()
            except Exception as error:
                if not may_repeat(error):
                    raise
                last = number == self.tries
                then = "it is given up" if last else f"the next one is in {pause:g} s"
                logger.warning("%s: try %d of %d failed, %s: %s", what, number, self.tries, then, error)
                if last:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("the last try returns or raises")


OF_CALLS = Retries(tries=3, first_pause_s=1.0)
"""The tries of listings and calls."""

OF_CREATES = Retries(tries=3, first_pause_s=2.0)
"""The tries to make an instance."""

__all__ = ["OF_CALLS", "OF_CREATES", "Retries"]
