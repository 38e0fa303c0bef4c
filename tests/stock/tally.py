"""The environment that stock clients are run against: a number that calls add to."""

from __future__ import annotations

from mcpenv import MCPEnvironment, Observation, Reward, State, ToolCall, ToolOutcome

OF_EACH_CALL = 0.808642
"""A reward that nothing else on the wire looks like."""

COMPONENT = "of_each_call"


class TallyState(State):
    """Beside episode and step count: the sum, and what was scored in all."""

    total: int = 0
    scored: float = 0.0


class Tally(MCPEnvironment):
    """Add up numbers."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state_type = TallyState

    def __init__(self) -> None:
        self.tally = TallyState()

        @self.tool
        def add(by: int) -> int:
            """Add to the tally; returns the sum so far."""
            self.tally.total += by
            return self.tally.total

        @self.tool(terminal=True)
        def stop() -> str:
            """Stop counting."""
            return "Stopped."

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.tally = TallyState()
        return Observation()

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        self.tally.scored += OF_EACH_CALL
        return Reward(value=OF_EACH_CALL, components={COMPONENT: OF_EACH_CALL})

    @property
    def state(self) -> TallyState:
        return self.tally
