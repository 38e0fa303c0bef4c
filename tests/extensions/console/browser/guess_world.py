"""A world for one visitor at a time, whose first observation has its task in a field of its own."""

from __future__ import annotations

from mcpenv import MCPEnvironment, Observation


class GuessWorld(MCPEnvironment):
    """Guess a number."""

    def __init__(self) -> None:
        @self.tool
        def guess(number: int) -> dict[str, float | int]:
            """Return numbers of many digits."""
            return {"guess": number, "share": 0.1234567890123456, "third": 0.3333333333333333}

        @self.tool
        def huge() -> str:
            """Return a number that a browser would round."""
            return '{"huge": 12345678901234567890, "more": "something that makes it long"}'

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Begin with a task."""
        return Observation(metadata={"task": "Guess a number from 1 to 100."})
