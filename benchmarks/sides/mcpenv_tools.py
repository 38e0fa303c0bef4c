"""The environment that is stepped over ``/ws``, HTTP and ``/mcp``: tools of each kind, each call scored."""

from __future__ import annotations

import base64

from fastmcp.utilities.types import Image
from pydantic import BaseModel

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome

PAGE = "0123456789" * 10_000
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
) + bytes(16_000)


class Order(BaseModel):
    """The order of an item."""

    item: str
    quantity: int
    notes: list[str] = []


class Tools(MCPEnvironment):
    """Count, in several ways.

    Arguments:
        max_steps: after which an episode is truncated.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.count = 0

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        async def order(order: Order) -> int:
            """Order something."""
            self.count += order.quantity
            return self.count

        @self.tool
        async def read() -> str:
            """Read a page of 100 kB."""
            return PAGE

        @self.tool
        async def look() -> Image:
            """Look at a picture of 16 kB."""
            return Image(data=PICTURE, format="png")

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(1.0, {"progress": 1.0})
