"""Whoever reads that an episode is worth nothing reads why."""

from __future__ import annotations

from typing import Any

import pytest

from mcpenv import Evidence, MCPEnvironment, Verdict


class Exam(MCPEnvironment):
    """An exam that the tool grades."""

    def __init__(self, at_reset: float | None = None) -> None:
        self._at_reset = at_reset

        @self.tool
        def submit(worth: float, reason: str | None = None) -> str:
            """Hand in."""
            self.finish(reward=worth, reason=reason)
            return "handed in"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        if self._at_reset is not None:
            self.finish(reward=self._at_reset)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"worth": 0.0}, ["the tool 'submit' ended the episode with reward 0"]),
        ({"worth": -1.5, "reason": "late"}, ["the tool 'submit' ended the episode with reward -1.5: late"]),
        ({"worth": 0.5}, []),
    ],
)
def test_a_tool_that_ends_an_episode_with_nothing_is_the_reason(arguments: dict[str, Any], problems: list[str]) -> None:
    with Exam() as env:
        env.reset()
        done = env.call_tool("submit", arguments)
        assert done.done and done.info.get("problems", []) == problems
        assert env.trajectory is not None and env.trajectory.problems == problems


def test_a_reset_that_ends_an_episode_with_nothing_is_the_reason() -> None:
    with Exam(at_reset=0.0) as env:
        assert env.reset().info["problems"] == ["the reset ended the episode with reward 0"]
        assert env.trajectory is not None and env.trajectory.problems == ["the reset ended the episode with reward 0"]


class Checked(MCPEnvironment):
    """An episode whose end is worth what the class says."""

    found: Any = None

    def __init__(self) -> None:
        @self.tool
        def stop(worth: float) -> None:
            """End the episode."""
            self.finish(reward=worth)

    def verify(self, evidence: Evidence) -> Any:
        return self.found


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (False, ["verify returned False"]),
        (0, ["verify returned 0"]),
        (-1.0, ["verify returned -1"]),
        (Verdict(False, []), ["verify returned False"]),
        (Verdict(False, ["the box is empty"]), ["the box is empty"]),
        (0.5, []),
        (True, []),
        (None, []),
    ],
)
def test_a_verification_without_a_reason_is_one(found: Any, problems: list[str]) -> None:
    with Checked() as env:
        env.found = found
        env.reset()
        assert env.end().info.get("problems", []) == problems


def test_both_reasons_are_kept() -> None:
    with Checked() as env:
        env.found = False
        env.reset()
        done = env.call_tool("stop", {"worth": 0})
        assert done.info["problems"] == ["the tool 'stop' ended the episode with reward 0", "verify returned False"]
