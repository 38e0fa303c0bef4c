"""Rescoring: a rubric applied to an episode that is over, as the core would have while it ran."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcpenv_client.records import StepRecord, Trajectory

from ..rewards import total
from .rubric import Rubric, is_async
from .scoring import EpisodeRubric


async def rescore(trajectory: Trajectory, rubric: Rubric) -> Trajectory:
    """The episode with the rewards that ``rubric`` gives, and no others; the trajectory itself stays as it is.

    Steps are asked about in their order, then the end, if the episode came to one. What `score`, ``finish`` and a
    verification gave is replaced too; `Verified` takes the verification up again. `ToolOutcome.value` is what the wire
    had of it, `ToolResult.data`.

    Raises:
        Misuse: the rubric asks for its environment, which is gone.
        Exception: whatever the rubric raised; TypeError and ValueError for what is no finite number.
    """
    scoring = EpisodeRubric(rubric, None)
    steps: list[StepRecord] = []
    for step in trajectory.steps:
        seen = _with_value(step)
        # A step that the environment failed was not scored then, and cannot be now.
        reward = None if step.fault else await scoring.of_step(seen.call, seen.outcome, _called)
        steps.append(replace(seen, reward=reward))
    scored = replace(trajectory, steps=steps, end_reward=None, total_reward=_sum(steps))
    if trajectory.done:
        of_end = await scoring.of_trajectory(scored, _called)
        if steps and steps[-1].done:
            steps[-1] = replace(steps[-1], reward=total(steps[-1].reward, of_end))
        else:
            scored.end_reward = of_end
        scored.total_reward = _sum(steps) + (0.0 if scored.end_reward is None else scored.end_reward.value)
    return scored


def _with_value(step: StepRecord) -> StepRecord:
    result = step.outcome.result
    if result is None or step.outcome.value is not None:
        return step
    return replace(step, outcome=replace(step.outcome, value=result.data))


def _sum(steps: list[StepRecord]) -> float:
    return sum(step.reward.value for step in steps if step.reward is not None)


async def _called(fn: Callable[..., Any], *args: Any) -> Any:
    return await fn(*args) if is_async(fn) else fn(*args)
