"""What is stepped over ``/ws``, HTTP and ``/mcp``: tools of each kind, each call scored.

``TOOLS=100`` in the environment adds so many more tools that nobody calls.
"""

from __future__ import annotations

import base64
import os

from fastmcp.utilities.types import Image
from pydantic import BaseModel

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome

PAGE = "0123456789" * 10_000
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
) + bytes(16_000)


class Order(BaseModel):
    """What somebody wants."""

    item: str
    quantity: int
    notes: list[str] = []


class Tools(MCPEnvironment):
    """Count, in several ways."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
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

        for number in range(int(os.environ.get("TOOLS", "0"))):
            self._add(number)

    def _add(self, number: int) -> None:
        @self.tool(name=f"tool_{number}")
        async def tool(text: str, times: int = 1) -> str:
            """Give a text back several times."""
            return text * times

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(1.0, {"progress": 1.0})
