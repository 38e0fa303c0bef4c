"""A world with a hundred tools, one of them slow, and a counter that shows which calls have run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastmcp import Context
from pydantic import Field

from mcpenv import MCPEnvironment, Observation

AREAS = ("orders", "mails", "files", "users", "stock", "dates", "notes", "prices", "routes")


def _look(area: str, number: int) -> Callable[[], str]:
    def look() -> str:
        return f"{area} {number}"

    return look


class WorkshopWorld(MCPEnvironment):
    """Count, in a crowd of tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    SURVIVES_TIMEOUT = True

    def __init__(self) -> None:
        self.count = 0
        for area in AREAS:
            for number in range(11):
                self.tool(_look(area, number), name=f"{area}_look_{number}", description=f"Look at {area}.")

        @self.tool
        def add(
            by: Annotated[int, Field(ge=1, le=9, description="How much.")],
            word: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)] = "a",
            note: str | None = None,
        ) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        def print_much() -> str:
            """Return more than a tab can keep."""
            return "much " * 600_000

        @self.tool
        async def wait(context: Context) -> str:
            """Wait until the call is cancelled."""
            await context.info("waiting for a cancel")
            await context.report_progress(3, 7, "halfway")
            await asyncio.Event().wait()
            return "never"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Begin at zero."""
        self.count = 0
        return Observation(metadata={"first": "all of the first observation " * 20})
