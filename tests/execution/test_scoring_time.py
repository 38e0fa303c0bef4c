"""The time that scoring takes, in records: apart from that of the tool."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from mcpenv import CallToolAction, MCPEnvironment, Trajectory

TOOL_S, SCORE_S, VERIFY_S = 0.08, 0.05, 0.11


class Slow(MCPEnvironment):
    """A tool, a score and a verifier that take their time."""

    def __init__(self) -> None:
        @self.tool
        def work() -> str:
            time.sleep(TOOL_S)
            return "done"

        @self.tool
        async def leave() -> str:
            self.finish()
            return "left"

    def score(self, call: Any, outcome: Any) -> Any:
        time.sleep(SCORE_S)
        return 1.0

    def verify(self, evidence: Any) -> float:
        time.sleep(VERIFY_S)
        return 1.0


class SlowAsync(Slow):
    """The same with an async score."""

    async def score(self, call: Any, outcome: Any) -> float:
        await asyncio.sleep(SCORE_S)
        return 1.0


@pytest.mark.parametrize("kind", [Slow, SlowAsync])
def test_a_step_and_an_end_say_how_long_their_score_took(kind: type[MCPEnvironment]) -> None:
    env: Any = kind()
    env.reset(seed=1)
    began = time.perf_counter()
    env.step(CallToolAction(tool_name="work"))
    env.end()
    lasted_s = time.perf_counter() - began
    trajectory = env.trajectory
    (step,) = trajectory.steps
    assert step.scoring_s >= SCORE_S and step.outcome.duration_s >= TOOL_S
    assert trajectory.end_scoring_s >= VERIFY_S
    assert step.scoring_s + step.outcome.duration_s + trajectory.end_scoring_s <= lasted_s
    again = Trajectory.from_plain(trajectory.to_plain())
    assert (again.steps[0].scoring_s, again.end_scoring_s) == (step.scoring_s, trajectory.end_scoring_s)


def test_a_step_that_ends_the_episode_counts_the_verifier() -> None:
    env: Any = Slow()
    env.reset(seed=1)
    assert env.step(CallToolAction(tool_name="leave")).terminated
    (step,) = env.trajectory.steps
    assert step.scoring_s >= SCORE_S + VERIFY_S and env.trajectory.end_scoring_s == 0.0


def test_a_record_of_an_older_version_has_no_times_of_scoring() -> None:
    env: Any = Slow()
    env.reset(seed=1)
    env.step(CallToolAction(tool_name="work"))
    data = env.trajectory.to_plain()
    del data["end_scoring_s"], data["steps"][0]["scoring_s"]
    again = Trajectory.from_plain(data)
    assert (again.steps[0].scoring_s, again.end_scoring_s) == (0.0, 0.0)
