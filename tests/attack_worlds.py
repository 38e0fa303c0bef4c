"""The world with secrets that its agents must never read. Importable by a server of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from mcpenv import MCPEnvironment, Observation, Reward, ToolCall, ToolOutcome

WORTH = 31337.25
COMPONENT = "zebra-component"
HINT = "walrus-hint"
FILE = "/srv/secret-folder/answers.json"

TELLTALES = (str(WORTH), COMPONENT, HINT, "secret-folder", "Traceback", "reward", "terminated", "truncated")
"""Words that stand in no answer to an agent."""


class Vault(MCPEnvironment):
    """A counter; every step is worth the same, and that is a secret."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0
        self.released = asyncio.Event()

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        async def echo(value: Any = None) -> Any:
            """Give it back."""
            return value

        @self.tool
        async def fail() -> str:
            """Fail."""
            raise RuntimeError(f"cannot open {FILE}")

        @self.tool(concurrent=True)
        async def hold() -> str:
            """Wait until somebody calls release."""
            await self.released.wait()
            return "released"

        @self.tool(concurrent=True)
        async def release() -> str:
            """Let go of hold."""
            self.released.set()
            return "done"

        @self.tool(terminal=True)
        async def submit() -> str:
            """Hand in."""
            return "handed in"

        @self.tool(mode="production")
        async def support_ticket() -> str:
            """For live clients."""
            return "filed"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.count = 0
        self.released.clear()
        return Observation(metadata={"hint": HINT})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(WORTH, {COMPONENT: WORTH})
