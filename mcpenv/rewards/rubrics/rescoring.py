"""Apply a rubric to a finished episode, as the core does while an episode runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcpenv_client.types.records import StepRecord, Trajectory, total

from .episode_rubric import EpisodeRubric
from .rubric import Rubric, is_async


async def rescore(trajectory: Trajectory, rubric: Rubric) -> Trajectory:
    """Return a copy of the episode that has only the rewards of ``rubric``; ``trajectory`` is not changed.

    Steps are scored in order, then the end, if the episode ended. Rewards from `score`, ``finish`` and a verification
    are replaced too; `Verified` uses the recorded verification. `ToolOutcome.value` is the value that was sent,
    `ToolResult.data`.

    Raises:
        Misuse: if the rubric uses its environment, which no longer exists.
        Exception: any exception of the rubric; TypeError and ValueError for a value that is not a finite number.
    """
    scoring = EpisodeRubric(rubric, None)
    steps: list[StepRecord] = []
    for step in trajectory.steps:
        seen = _with_value(step)
        # A step that failed in the environment was never scored.
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
