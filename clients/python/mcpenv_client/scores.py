"""Compare the episodes of one task with each other, as trainers do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from .types.records import Fork, Trajectory, finite, summed
from .types.status import Status

Baseline = Literal["mean", "leave_one_out"]


RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""The tolerance of `equal`: relative to the larger value, and near 0."""


def equal(one: float, other: float) -> bool:
    """Return True if two sums of rewards differ by no more than rounding."""
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def reaches(value: float, wanted: float) -> bool:
    """Return True if a sum of rewards is at least ``wanted``, but for rounding."""
    return value >= wanted or equal(value, wanted)


def passes(score: float | None, verified: float | None, full: float | None, threshold: float | None) -> bool | None:
    """Return True if an episode passed, which is the rule of evaluations, pools and samplers.

    Args:
        score: the return; None if it was not scored.
        verified: the value of its verification, which then decides, and not the return; None if there was none.
        full: the worth of a solved task, the upper bound of its ``reward_range``; None without a task.
        threshold: a return that passes, in place of the two before; None: none.

    Returns:
        None if it has no score, or nothing to reach.
    """
    wanted = full if threshold is None else threshold
    if wanted is None or score is None:
        return None
    return reaches(score if threshold is not None or verified is None else verified, wanted)


def score_of(trajectory: Trajectory) -> float | None:
    """Return the sum of an episode's rewards, or None (not 0) if nothing was scored or any scoring failed."""
    if trajectory.fault is not None or any(step.fault is not None for step in trajectory.steps):
        return None
    return trajectory.earned


def whole_status(trajectory: Trajectory) -> Status | None:
    """Return the status of an episode for training: that of its first step that is not about the agent, or its own.

    An episode may end well after a step that failed by no fault of the agent, such as for a full disk. Its reward says
    little about the agent then. None for an episode that runs.
    """
    if trajectory.status is None:
        return None
    return next((step.status for step in trajectory.steps if not step.status.usable), trajectory.status)


def worth_of(trajectory: Trajectory) -> float | None:
    """Return the value that decides if a task is solved: the verification of the end, or else `score_of`.

    A rubric that rewards or penalizes effort changes the return, but not whether the task is solved.
    """
    score = score_of(trajectory)
    return score if score is None or trajectory.verified is None else trajectory.verified.value


def advantages(
    trajectories: Sequence[Trajectory], *, baseline: Baseline = "mean", scale: bool = True
) -> list[float | None]:
    """Return the advantage of each episode over its group.

    Args:
        trajectories: episodes of one task.
        baseline: "mean" of the group (GRPO, arXiv:2402.03300), or "leave_one_out", the mean of the others (RLOO,
            arXiv:2402.14740).
        scale: divide by the (population) standard deviation of the group; equal scores give 0. Scores that differ by
            rounding only are equal.

    Returns:
        One value for each episode, in order. None for an episode that was not scored; it is not part of any mean. The
        only scored episode of a group gets 0.0.
    """
    return advantages_of_scores([score_of(trajectory) for trajectory in trajectories], baseline=baseline, scale=scale)


def branching_point(trajectory: Trajectory) -> Fork | None:
    """Return the episode and step that a branch continues; None for an episode that is none.

    A fork of the state after a reset is none: it begins as its parent did. The branches of one point are a group, of
    which their parent is no part: another policy may have played it.
    """
    origin = trajectory.forked_from
    return origin if origin is not None and origin.step > 0 else None


def branch_advantages(
    trajectories: Sequence[Trajectory], *, baseline: Baseline = "mean", scale: bool = True
) -> list[float | None]:
    """Return the advantage of each branch over those of the same branching point.

    Args:
        trajectories: branches of any points. Those without a point are groups by task and seed.
        baseline, scale: as for `advantages`.

    Returns:
        One value for each episode, in order; None for an episode that was not scored.
    """
    groups: dict[Any, list[int]] = {}
    for place, each in enumerate(trajectories):
        task = None if each.task is None else (each.task.split, each.task.id)
        groups.setdefault((branching_point(each), task, each.seed), []).append(place)
    found: list[float | None] = [None] * len(trajectories)
    for members in groups.values():
        values = advantages([trajectories[place] for place in members], baseline=baseline, scale=scale)
        for place, value in zip(members, values, strict=True):
            found[place] = value
    return found


def advantages_of_scores(
    scores: Sequence[float | None], *, baseline: Baseline = "mean", scale: bool = True
) -> list[float | None]:
    """Return the advantage of each score over its group. Arguments and values are the same as for `advantages`."""
    if baseline not in get_args(Baseline):
        raise ValueError(f"baseline is {baseline!r}; it must be one of {', '.join(get_args(Baseline))}")
    scores = _levelled(scores)
    scored = [score for score in scores if score is not None]
    if len(scored) < 2 or min(scored) == max(scored):
        # A separate case, because the mean of equal floats may differ from them.
        return [None if score is None else 0.0 for score in scores]
    mean = math.fsum(scored) / len(scored)
    factor = len(scored) / (len(scored) - 1) if baseline == "leave_one_out" else 1.0
    if scale:
        factor *= math.sqrt(len(scored)) / math.hypot(*(score - mean for score in scored))  # squares may overflow
    return [None if score is None else (score - mean) * factor for score in scores]


def ranks(trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Return the rank of each episode in its group: 1.0 is the best, equal scores share the mean of their ranks.

    None for an episode that was not scored.
    """
    scores = _levelled([score_of(trajectory) for trajectory in trajectories])
    scored = [score for score in scores if score is not None]
    return [
        None if score is None else sum(other > score for other in scored) + (scored.count(score) + 1) / 2
        for score in scores
    ]


def _levelled(scores: Sequence[float | None]) -> list[float | None]:
    """Return the scores. Those that differ by rounding only are replaced by the lowest of them."""
    known: dict[float, float] = {}
    lowest: float | None = None
    for score in sorted({score for score in scores if score is not None}):
        if lowest is None or not equal(lowest, score):
            lowest = score
        known[score] = lowest
    return [None if score is None else known[score] for score in scores]


def discount_of(value: float) -> float:
    """Return a discount as a float.

    Raises:
        TypeError, ValueError: if it is not a number from 0 to 1.
    """
    discount = finite("discount", value)
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount:g}; it must be from 0 to 1")
    return discount


def discounted_returns(trajectory: Trajectory, discount: float = 1.0) -> list[float]:
    """Return for each step its reward plus ``discount`` times the return of the next step. Not scored counts as 0.

    Args:
        trajectory: an episode of which no step was dropped.
        discount: 0 to 1.

    Raises:
        ValueError: if steps are missing, or the discount is out of range.
    """
    if trajectory.dropped:
        raise ValueError(
            f"{trajectory.dropped} steps of the episode were dropped. Raise max_kept_steps or max_kept_bytes"
        )
    discount, following, rest = discount_of(discount), 0.0, 0.0
    returns: list[float] = []
    for step in reversed(trajectory.steps):
        parts = (0.0 if step.reward is None else step.reward.value, discount * following, discount * rest)
        following = summed(parts)
        rest = summed((*parts, -following))
        returns.append(following)
    return returns[::-1]
