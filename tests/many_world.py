"""The world of `test_many_episodes`: rewards and ends that tell whose calls were counted."""

from __future__ import annotations

from mcpenv import MCPEnvironment, Observation, ToolCall, ToolOutcome


class Purse(MCPEnvironment):
    """Coins are put into a purse, each of the orchestrator's value, until it is shut."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.coin, self.coins = 0, 0

        @self.tool
        async def put(number: int) -> int:
            """Put that many coins in."""
            self.coins += number
            return self.coins

        @self.tool(terminal=True)
        def shut() -> int:
            """Shut the purse."""
            return self.coins

    def reset(self, seed: int | None = None, episode_id: str | None = None, coin: int = 1) -> Observation:
        self.coin, self.coins = coin, 0
        return Observation(metadata={"coin": coin})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return self.coin * call.arguments["number"] if call.name == "put" else 0.5
