"""Apply a rubric to a finished episode, as the core does while an episode runs. Load the rubric that TARGET names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcpenv.errors import TargetError, describe
from mcpenv.rewards.rubrics import Rubric
from mcpenv.rewards.rubrics.episode_rubric import EpisodeRubric, refuse_silent
from mcpenv.rewards.rubrics.rubric import is_async
from mcpenv.targets.place import called, find_place
from mcpenv.targets.user_module import load_module
from mcpenv_client.types.records import Reward, StepRecord, Trajectory, summed, total


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
        scored.total_reward = _sum(steps, scored.end_reward)
    return scored


def _with_value(step: StepRecord) -> StepRecord:
    result = step.outcome.result
    if result is None or step.outcome.value is not None:
        return step
    return replace(step, outcome=replace(step.outcome, value=result.data))


def _sum(steps: list[StepRecord], of_end: Reward | None = None) -> float:
    rewards = (*(step.reward for step in steps), of_end)
    return summed(reward.value for reward in rewards if reward is not None)


async def _called(fn: Callable[..., Any], *args: Any) -> Any:
    return await fn(*args) if is_async(fn) else fn(*args)


def named_object(target: str) -> tuple[Any, Path | None]:
    """Return the object that ``module:NAME`` or ``file.py:NAME`` names, of any type, and the folder of its code.

    Raises:
        TargetError: there is no such object, or the code does not load (``__cause__``).
    """
    place = find_place(target)
    if place.attribute is None:
        raise TargetError(target, "the name of an object is missing; write MODULE:NAME or FILE.py:NAME")
    module = load_module(place)
    try:
        found = getattr(module, place.attribute)
    except AttributeError as error:
        raise TargetError(target, f"there is no {place.attribute!r} in {called(place)}") from error
    return found, place.file.parent if place.file is not None else None


def load_rubric(target: str) -> Rubric:
    """Return the rubric that ``target`` names, or that the named class or function makes without arguments.

    Raises:
        TargetError: it is not found, its code does not load, it is not a rubric, or the rubric never scores.
    """
    found, folder = named_object(target)
    if isinstance(found, Rubric):
        return _scoring(target, found)
    if not callable(found):
        raise TargetError(target, f"it is a {type(found).__name__}, neither a rubric nor a callable that makes one")
    try:
        made = found()
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TargetError(target, f"it raised {describe(error, folder)}") from error
    if not isinstance(made, Rubric):
        raise TargetError(target, f"it returned a {type(made).__name__}, not a Rubric")
    return _scoring(target, made)


def _scoring(target: str, rubric: Rubric) -> Rubric:
    try:
        refuse_silent(rubric)
    except TypeError as error:
        raise TargetError(target, str(error)) from error
    return rubric
