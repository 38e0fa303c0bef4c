"""mcpenv in one process: steps, and instances. Two tools, each call scored."""

from __future__ import annotations

from rounds import play

from mcpenv import MCPEnvironment, Reward
from mcpenv_client import ToolCall, ToolOutcome


class Counter(MCPEnvironment):
    """Count."""

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

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(1.0, {"progress": 1.0})


def main() -> None:
    env = Counter()
    env.reset()
    assert env.call_tool("add", {"by": 1}).reward == env.call_tool("add_sync", {"by": 1}).reward == 1.0
    play(
        {
            "async": lambda: env.call_tool("add", {"by": 1}),
            "sync": lambda: env.call_tool("add_sync", {"by": 1}),
            "instance": Counter,
        }
    )


if __name__ == "__main__":
    main()
