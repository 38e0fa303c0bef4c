"""Group: episodes of one task beside each other, as trainers compare them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from mcpenv_client.records import Trajectory

from .over_time import discount_of

Baseline = Literal["mean", "leave_one_out"]


def score_of(trajectory: Trajectory) -> float | None:
    """The sum of an episode's rewards; None if neither a step nor the end was scored, which is not 0, or one failed."""
    if trajectory.fault is not None or any(step.fault is not None for step in trajectory.steps):
        return None
    scored = trajectory.end_reward is not None or any(step.reward is not None for step in trajectory.steps)
    if trajectory.total_reward == 0 and not scored:
        return None
    return trajectory.total_reward


def worth_of(trajectory: Trajectory) -> float | None:
    """By what a task counts as solved: what its end was verified to be worth, or else its score (`score_of`).

    A rubric that also pays for effort, or makes it cost, changes the return and not whether the task was solved.
    """
    score = score_of(trajectory)
    return score if score is None or trajectory.verified is None else trajectory.verified.value


def advantages(
    trajectories: Sequence[Trajectory], *, baseline: Baseline = "mean", scale: bool = True
) -> list[float | None]:
    """How much better each episode is than its group.

    Args:
        trajectories: episodes of one task.
        baseline: "mean", that of the group (GRPO, arXiv:2402.03300), or "leave_one_out", that of the others
            (RLOO, arXiv:2402.14740).
        scale: divide by the standard deviation of the group (as a population); equal scores give 0.

    Returns:
        One for each, in order. None for an episode that was not scored: it counts in no mean. One that is scored alone
        has 0.0.
    """
    if baseline not in get_args(Baseline):
        raise ValueError(f"baseline is {baseline!r}; it is one of {', '.join(get_args(Baseline))}")
    scores = [score_of(trajectory) for trajectory in trajectories]
    scored = [score for score in scores if score is not None]
    if len(scored) < 2 or min(scored) == max(scored):
        # Said apart, because the mean of equal floats need not be equal to them.
        return [None if score is None else 0.0 for score in scores]
    mean = math.fsum(scored) / len(scored)
    factor = len(scored) / (len(scored) - 1) if baseline == "leave_one_out" else 1.0
    if scale:
        factor /= math.sqrt(math.fsum((score - mean) ** 2 for score in scored) / len(scored))
    return [None if score is None else (score - mean) * factor for score in scores]


def ranks(trajectories: Sequence[Trajectory]) -> list[float | None]:
    """The place of each episode in its group: 1.0 is the best, equals share the mean of their places.

    None for an episode that was not scored.
    """
    scores = [score_of(trajectory) for trajectory in trajectories]
    scored = [score for score in scores if score is not None]
    return [
        None if score is None else sum(other > score for other in scored) + (scored.count(score) + 1) / 2
        for score in scores
    ]


def discounted_returns(trajectory: Trajectory, discount: float = 1.0) -> list[float]:
    """What each step is followed by: its reward plus ``discount`` times the next step's return. Not scored counts as 0.

    Args:
        trajectory: an episode of which no step was dropped.
        discount: 0 to 1.

    Raises:
        ValueError: steps are missing, or the discount is out of range.
    """
    if trajectory.dropped:
        raise ValueError(f"{trajectory.dropped} steps of the episode are no longer held; raise max_kept_steps")
    discount, following = discount_of(discount), 0.0
    returns: list[float] = []
    for step in reversed(trajectory.steps):
        following = (0.0 if step.reward is None else step.reward.value) + discount * following
        returns.append(following)
    return returns[::-1]
