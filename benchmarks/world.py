"""The world that benchmarks step: one cheap tool, a reward with components, episodes of twenty steps."""

from __future__ import annotations

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome

STEPS = 20
"""Steps of an episode."""


class Counter(MCPEnvironment):
    """Count."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    max_steps = STEPS

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter, in a sync tool."""
            self.count += by
            return self.count

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(1.0, {"progress": 1.0})
