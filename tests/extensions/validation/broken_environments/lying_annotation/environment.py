"""Declare a tool that changes the state as read-only."""

from __future__ import annotations

from mcpenv import MCPEnvironment
from mcpenv.worlds import ObjectWorld


class Broken(MCPEnvironment):
    """Declare a tool that changes the state as read-only.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.visits = 0
        self.world = ObjectWorld(lambda: {"visits": self.visits})

        @self.tool(annotations={"readOnlyHint": True})
        def visit() -> int:
            """Visit the page, and return the number of visits."""
            self.visits += 1
            return self.visits

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.visits = 0
