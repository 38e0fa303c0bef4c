"""The summary of an episode, for a row of a table."""

from __future__ import annotations

from typing import Any

from mcpenv_client.types import records
from mcpenv_client.types.records import Trajectory

from .episode import RecordedEpisode


def summary_of(episode: RecordedEpisode) -> dict[str, Any]:
    """Return an episode in a few plain values.

    ``return`` is None if nothing was scored. ``fault`` is the code of the first error with which scoring or verifying
    it failed. With a fault the episode's worth is unknown, and ``return`` is the sum of the known rewards. ``status``
    is the `StatusCode`; it and the three fields after it are None for an unfinished episode.
    """
    trajectory = episode.trajectory
    task, status = trajectory.task, trajectory.status
    return {
        "id": trajectory.episode_id,
        "task_id": None if task is None else task.id,
        "split": None if task is None else task.split,
        "level": None if task is None else task.level,
        "family": None if task is None else task.family,
        "tags": [] if task is None else [*task.tags],
        "environment": episode.environment.name,
        "environment_version": episode.environment.version,
        "seed": trajectory.seed,
        "return": trajectory.earned,
        "fault": fault_of(trajectory),
        "status": None if status is None else status.code.value,
        "status_stage": None if status is None or status.stage is None else status.stage.value,
        "status_retryable": None if status is None else status.retryable,
        "status_limit": None if status is None else status.limit,
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "reason": trajectory.reason,
        "ending": episode.ending,
        "n_steps": steps_of(trajectory),
        "started_at": trajectory.started_at,
        "ended_at": trajectory.ended_at,
    }


def steps_of(trajectory: Trajectory) -> int:
    """Return the number of steps of an episode, those included that it does not have any more."""
    return trajectory.dropped + len(trajectory.steps)


def named_task_of(trajectory: Trajectory) -> str | None:
    """Return the name of an episode's task with its split; None without a task."""
    return None if trajectory.task is None else f"{trajectory.task.split}/{trajectory.task.id}"


def fault_of(trajectory: Trajectory) -> str | None:
    """Return the code of the first error of the environment's own code in an episode; None without an error."""
    return next((step.fault for step in trajectory.steps if step.fault is not None), trajectory.fault)


def components_of(trajectory: Trajectory) -> dict[str, float]:
    """Return the sums of the named components of its rewards, including the reward of the end."""
    rewards = (*(step.reward for step in trajectory.steps), trajectory.end_reward)
    return records.components_of(reward for reward in rewards if reward is not None)
