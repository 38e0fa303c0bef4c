"""The episodes that a pool plays, and their outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.rows import reset_options_of
from mcpenv_client.samples import SampledTurn
from mcpenv_client.scores import score_of
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.status import Status
from mcpenv_client.types.tasks import Task


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
        trajectory: its record; None if it was lost with its server or process.
        reward: the sum of its rewards; None if it was not scored, or if the status is not about the agent.
        value: the value that the policy returned.
        turns: the model's answers as tokens, which the policy gave to `RunningEpisode.wrote`.
        attempts: the number of attempts.
        duration_s: the seconds of the last attempt, without waiting for a place.
        where: the place that played it, such as a server's URL or a worker's process id.
        error: the text of the last error; None if there was none.
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

    @classmethod
    def of(cls, assignment: Assignment, trajectory: Trajectory, status: Status, **more: Any) -> Played:
        """Return the episode of a trajectory, with its reward if that is about the agent."""
        reward = score_of(trajectory) if status.usable else None
        return cls(assignment, status, trajectory, reward, **more)


def assignments(
    tasks: Iterable[Task | str | Mapping[str, Any]] | None, *, n: int, group: int, seed: int | None
) -> list[Assignment]:
    """Return the episodes of a rollout, task by task.

    Args:
        tasks: tasks, their ids or rows; None: ``n`` groups without a task.
        n: the number of plays of each task, each with a different seed.
        group: the number of episodes in each group, with the same task and seed.
        seed: the seed of a task's first group; the following groups count up from it. None: the tasks' own seeds;
            without tasks 0.

    Raises:
        ValueError: a number is too small, or a row names no task.
    """
    for name, value in (("n", n), ("group", group)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more")
    rows: Sequence[Any] = [None] if tasks is None else list(tasks)
    if tasks is None and seed is None:
        seed = 0
    made: list[Assignment] = []
    for row in rows:
        options = reset_options_of(row)
        own = options.pop("seed", None)
        first = own if seed is None else seed
        if first is None and n > 1:
            raise ValueError("n above 1 needs a seed, so that the episodes of a task differ; give seed=")
        for repeat in range(n):
            for sample in range(group):
                number = len(made)
                its = None if first is None else first + repeat
                made.append(Assignment(number, number // group, sample, its, options, row))
    return made


def shares_of(planned: Sequence[Assignment], each: int) -> list[Share]:
    """Return the episodes of a rollout in shares of ``each``, which is 1 or the size of a group."""
    return [tuple(planned[place : place + each]) for place in range(0, len(planned), each)]


@dataclass(frozen=True)
class Limits:
    """The limits of each episode.

    Attributes:
        episode_timeout_s: the seconds from the reset after which the policy is stopped and the episode truncated.
        step_timeout_s: the deadline of each call; None: the environment's own.
    """

    episode_timeout_s: float = 600.0
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("episode_timeout_s", "step_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value}; it must be a positive number of seconds")
