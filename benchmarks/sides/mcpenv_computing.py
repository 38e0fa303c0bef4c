"""The environment that many clients step at once: a tool that does nothing, and one that computes."""

from __future__ import annotations

import time

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome


class Tools(MCPEnvironment):
    """Count, at once or after computing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        async def compute(microseconds: int) -> int:
            """Add to the counter, after so much processor time."""
            until = time.thread_time_ns() + 1000 * microseconds
            while time.thread_time_ns() < until:
                pass
            self.count += 1
            return self.count

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        """Count from 0."""
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        """Return 1 for each call."""
        return Reward(1.0, {"progress": 1.0})
