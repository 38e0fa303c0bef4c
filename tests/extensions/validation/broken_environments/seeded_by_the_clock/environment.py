"""Draw from a generator that no seed reaches."""

from __future__ import annotations

import random
import time

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Draw from a generator that no seed reaches.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.dice = random.Random(time.perf_counter_ns())

        @self.tool
        def roll() -> int:
            """Roll a die with a million sides."""
            return self.dice.randrange(1_000_000)
