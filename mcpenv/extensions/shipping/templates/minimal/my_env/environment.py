"""Count to a target: two tools, a reward for each step, and an end."""

from __future__ import annotations

import random

from mcpenv import MCPEnvironment, Observation, Reward, State, ToolCall, ToolError, ToolOutcome


class MyEnvState(State):
    """The state that orchestrators and the console see; agents do not."""

    count: int = 0
    target: int = 0


class MyEnv(MCPEnvironment):
    """Count to a target, in few steps.

    Description:
        The agent adds to a counter until it is at the target. It does not get beyond the target.

    Tools:
        add(by): add 1 to 5, and return the counter.
        look(): return the counter and the target.

    Observation:
        Of a reset: ``metadata.prompt``, the target in words. Of a step: the tool's.

    Reward:
        Per step: -0.1, and 1.0 more when the counter is at the target: [-0.1, 0.9].

    Start:
        The counter is 0. The target is from 6 to 20, drawn from the seed.

    End:
        Terminated at the target. Truncated after ``max_steps`` steps.

    Arguments:
        max_steps: steps after which an episode is truncated, 1 or more.

    Version:
        0.1.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"
    state_type = MyEnvState

    def __init__(self, max_steps: int = 30) -> None:
        self.max_steps = max_steps
        self.count = 0
        self.target = 6

        @self.tool
        def add(by: int) -> int:
            """Add to the counter, and return it.

            Args:
                by: how much to add, from 1 to 5.
            """
            if not 1 <= by <= 5:
                raise ToolError(f"by is {by}; it must be from 1 to 5")
            if self.count + by > self.target:
                raise ToolError(f"{self.count} + {by} is beyond the target; add less")
            self.count += by
            return self.count

        @self.tool
        def look() -> dict[str, int]:
            """Return the counter and the target."""
            return {"count": self.count, "target": self.target}

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Begin at 0 with a target drawn from the seed."""
        self.count = 0
        self.target = random.Random(seed).randint(6, 20)
        return Observation(metadata={"prompt": f"Count to {self.target}."})

    @property
    def state(self) -> MyEnvState:
        """Return the counter and the target."""
        return MyEnvState(count=self.count, target=self.target)

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        """Return the effort of every step, and 1.0 at the target."""
        if self.count < self.target:
            return Reward(-0.1, {"effort": -0.1})
        self.finish(reason="target")
        return Reward(0.9, {"effort": -0.1, "target": 1.0})
