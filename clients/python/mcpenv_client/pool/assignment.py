"""The episodes that a pool plays, and their outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.errors import McpenvError
from mcpenv_client.samples import Sample, SampledTurn
from mcpenv_client.scores import passes, score_of
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Trajectory, components_of
from mcpenv_client.types.starts import Start
from mcpenv_client.types.status import Status
from mcpenv_client.types.tasks import Task

WORLD = "world"
"""The column of a row that names its environment, where a pool has several."""


def world_of(row: Any) -> str | None:
    """Return the world that a row names; None if it names none."""
    return row.get(WORLD) if isinstance(row, Mapping) else None


def check_several(tasks: Any) -> None:
    """Raise a ValueError for one task in place of several: letters of a text and columns of a row are no tasks."""
    if isinstance(tasks, str | Mapping | Task | Start):
        what = repr(tasks) if isinstance(tasks, str) else f"a {type(tasks).__name__}"
        raise ValueError(f"tasks is {what}, which is one task; give a list of tasks")


@dataclass(frozen=True)
class Assignment:
    """One episode to play.

    Attributes:
        number: its place in the rollout, from 0.
        group: the number of its group; the episodes of a group have the same task and seed.
        sample: its number in the group, from 0.
        seed: the seed of its reset; None: the task's own.
        options: the other arguments of its reset: ``task``, or ``split`` and ``index``, and the row's ``options``.
        row: the task or row that it was made from; None for an episode without a task.
    """

    number: int
    group: int
    sample: int
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    row: Any = None


Share = tuple[Assignment, ...]
"""The work of one environment after one reset: an episode, or a group of forks of the state after the reset."""


@dataclass(frozen=True)
class Played:
    """An episode that was played to its end, or abandoned.

    Attributes:
        assignment: the assignment of the episode.
        status: the status of the episode.
        trajectory: its record; None if it was lost with its server or process, or without ``trajectories``.
        reward: the sum of its rewards; None if it was not scored, or if the status is not about the agent.
        value: the value that the policy returned.
        turns: the model's answers as tokens, which the policy gave to `RunningEpisode.wrote`.
        attempts: the number of attempts.
        duration_s: the seconds of the last attempt, without waiting for a place.
        where: the place that played it, such as a server's URL or a worker's process id.
        error: the text of the last error; None if there was none.
        parts: the sums of the named parts of its rewards; None if the environment did not end it.
        environment: the name of the environment; None if it is not known.
        pool_version: the pool's ``policy_version`` when its last attempt began; None if unknown.
    """

    assignment: Assignment
    status: Status
    trajectory: Trajectory | None = None
    reward: float | None = None
    value: Any = None
    attempts: int = 1
    duration_s: float = 0.0
    where: str = ""
    error: str | None = None
    turns: Sequence[SampledTurn] = ()
    parts: Mapping[str, float] | None = None
    pool_version: int | None = None
    environment: str | None = None

    @property
    def ended(self) -> bool:
        """True if the environment ended the episode. False: it was lost, or failed in its reset."""
        return self.parts is not None

    @property
    def policy_version(self) -> int | None:
        """The oldest version of the weights that wrote a part of it; None if unknown.

        The parts are the turns that the policy gave to `RunningEpisode.wrote` or returned. One that names no version
        was written by that of the pool or a later one.
        """
        given = self.turns or (self.value if isinstance(self.value, list) else [self.value])
        named = [each.policy_version for each in given if isinstance(each, (Sample, SampledTurn, ModelTurn))]
        versions = [self.pool_version if version is None else version for version in named or [None]]
        return min((version for version in versions if version is not None), default=None)

    def passed(self, threshold: float | None = None) -> bool | None:
        """Return True if the episode passed, as evaluations decide it (`mcpenv_client.scores.passes`).

        Without its trajectory, its task is known only if its row is or has a `Task`; for others, 1 is full reward.

        Args:
            threshold: a reward that passes; None: what was verified, or else the reward, reaches the upper bound of the
                task's ``reward_range``.

        Returns:
            None if it has no reward.
        """
        row = self.assignment.row
        verified = (self.parts or {}).get("verified")
        given = row.task if isinstance(row, Start) else row.get("task") if isinstance(row, Mapping) else row
        task = given if isinstance(given, Task) else None
        if self.trajectory is not None:
            task = self.trajectory.task or task
            verified = None if self.trajectory.verified is None else self.trajectory.verified.value
        return passes(self.reward, verified, 1.0 if task is None else task.reward_range[1], threshold)

    @classmethod
    def of(cls, assignment: Assignment, trajectory: Trajectory, status: Status, **more: Any) -> Played:
        """Return the episode of a trajectory, with its reward if that is about the agent."""
        reward = score_of(trajectory) if status.usable else None
        rewards = [*(step.reward for step in trajectory.steps), trajectory.end_reward]
        parts = components_of(each for each in rewards if each is not None)
        return cls(assignment, status, trajectory, reward, parts=parts, **more)


class PlayError(McpenvError):
    """The base of the errors that end a play.

    Attributes:
        finished: what had finished and was not yielded: of `EnvPool.rollout` all episodes, in order; of groups those of
            groups that were not whole.
        unfinished: as of `Stream`.
    """

    finished: Sequence[Played] = ()
    unfinished: Sequence[Assignment] = ()


@dataclass(frozen=True)
class Limits:
    """The limits of each episode.

    Attributes:
        episode_timeout_s: the seconds from the reset after which the policy is stopped and the episode truncated. A
            call that runs then has two more. In this process and in workers, one that blocks is waited for without
            ``step_timeout_s``.
        step_timeout_s: the deadline of each call; None: the environment's own.
    """

    episode_timeout_s: float = 600.0
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("episode_timeout_s", "step_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; it must be a positive number of seconds")
