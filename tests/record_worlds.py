"""Worlds whose episodes are recorded: a seeded game with every kind of step, and one that forgets its seed."""

from __future__ import annotations

import base64
import random
from typing import Any, Literal

from mcp_types import ImageContent

from mcpenv import Action, MCPEnvironment, Observation, Reward, Rubric, ToolError, Trajectory
from mcpenv_client import Plane, ToolCall, ToolOutcome

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


class Shout(Action):
    """An action of the environment's own."""

    type: Literal["shout"] = "shout"
    text: str


class Heard(Observation):
    """The result of a tool."""

    echo: str


class Dice(MCPEnvironment):
    """Roll until the total is at least the target.

    Args:
        loaded: every roll is the largest.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    action_types = (Shout,)
    observation_type = Observation

    def __init__(self, loaded: bool = False) -> None:
        self.loaded = loaded
        self.total = 0

        @self.tool
        def roll(times: int = 1) -> int:
            """Roll so many dice; the total so far."""
            rolls = [self.sides if self.loaded else self.random.randint(1, self.sides) for _ in range(times)]
            self.total += sum(rolls)
            if self.total >= self.target:
                self.finish(Reward(10.0, {"won": 10.0}), reason="enough")
            return self.total

        @self.tool
        def say(text: str, loud: bool = False) -> dict[str, Any]:
            """Say something."""
            return {"said": text.upper() if loud else text}

        @self.tool
        def picture() -> ImageContent:
            """A picture of the dice."""
            return ImageContent(type="image", data=PIXEL, mime_type="image/png")

        @self.tool
        def refuse() -> None:
            """Never works."""
            raise ToolError("not with these dice")

        @self.tool
        def crash() -> None:
            """Never works either."""
            raise RuntimeError("out of dice")

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, sides: int = 6, target: int = 20
    ) -> Observation:
        self.random = random.Random(seed)
        self.sides, self.target, self.total = sides, target, 0
        return Observation(metadata={"prompt": f"Reach {target} with dice of {sides} sides."})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | None:
        if call.name == "say":
            return None
        return Reward(0.5 if outcome.error is None else -0.5, {"effort": 0.5})

    def act(self, action: Action) -> Heard:
        assert isinstance(action, Shout)
        return Heard(echo=f"{action.text} ({self.total})")


class Forgetful(Dice):
    """Takes no notice of its seed."""

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, sides: int = 6, target: int = 20
    ) -> Observation:
        observation: Observation = super().reset(None, episode_id, sides=sides, target=target)
        self.random = random.Random()
        return observation


class FewRolls(Rubric):
    """Half a point for each roll, two at the end if there were at most ``most``."""

    def __init__(self, most: int = 100) -> None:
        self.most = most

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return 0.25 if call.name == "roll" and call.plane in Plane else None

    def score_trajectory(self, trajectory: Trajectory) -> float:
        return 2.0 if len(trajectory.steps) <= self.most else 0.0


class AsksTheWorld(Rubric):
    """Needs what is gone when an old record is scored."""

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(self.env.total)


few_rolls = FewRolls(most=50)


def play(env: Any, seed: int) -> None:
    """Play one episode with every kind of step, to its end; ``env``: an environment, or a blocking client."""
    env.reset(seed=seed, sides=8, target=30)
    env.call_tool("say", {"text": "hello", "loud": True})
    env.call_tool("picture")
    env.call_tool("refuse")
    env.call_tool("crash")
    env.call_tool("nothing")
    env.call_tool("roll", {"times": "three"})
    env.step(Shout(text="go"))
    while not env.call_tool("roll", {"times": 2}).done:
        pass
