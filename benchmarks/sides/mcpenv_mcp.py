"""The environment that agents call over ``/mcp``: one tool, and as many more as requested."""

from __future__ import annotations

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome


class Tools(MCPEnvironment):
    """Count.

    Arguments:
        tools: how many there are.
        sync: whether the one that is called is a plain function.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, tools: int = 1, sync: bool = False) -> None:
        self.count = 0
        if sync:
            self.tool(self.add_sync, name="add")
        else:
            self.tool(self.add)
        for number in range(1, tools):
            self.tool(self.again, name=f"tool_{number}")

    async def add(self, by: int = 1) -> int:
        """Add to the counter."""
        self.count += by
        return self.count

    def add_sync(self, by: int = 1) -> int:
        """Add to the counter."""
        self.count += by
        return self.count

    async def again(self, text: str, times: int = 1) -> str:
        """Give a text back several times."""
        return text * times

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        """Count from 0."""
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        """Return 1 for each call."""
        return Reward(1.0, {"progress": 1.0})
