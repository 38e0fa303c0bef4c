"""Plans: the episodes of an evaluation, each a sample of a task or of a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from mcpenv_client.types.tasks import LABELS, Task


class Key(NamedTuple):
    """The key that identifies an episode in an evaluation.

    Attributes:
        task: the task's id; None for an environment without tasks: its episodes differ by ``seed``.
        split: the task's split; None without a task.
        seed: None with a task, which has its own seed.
        sample: the number of the sample, from 0.
    """

    split: str | None
    task: str | None
    seed: int | None
    sample: int

    @property
    def unit(self) -> tuple[str | None, str | None, int | None]:
        """The key of the task or seed, without the sample."""
        return self[:3]

    def __str__(self) -> str:
        of = f"seed {self.seed}" if self.task is None else str(self.task)
        return f"{of}, sample {self.sample}"


@dataclass(frozen=True)
class Planned:
    """A planned episode.

    Attributes:
        full_reward: the worth of a solved task (`worth_of`); None without a task.
        digest: the hash of the task's present definition, without its labels; None without a task.
        level, family, tags: the labels of the task.
    """

    key: Key
    full_reward: float | None = None
    digest: str | None = None
    level: int | None = None
    family: str | None = None
    tags: tuple[str, ...] = ()


def chosen(size: int, n: int | None, seed: int | None) -> list[int]:
    """Return the indices of the tasks to play. A larger ``n`` includes the tasks of a smaller one.

    Args:
        size: number of tasks in the split.
        n: number of tasks to play; None for all.
        seed: the seed of a random choice; None chooses the first ones.
    """
    indices = list(range(size))
    if seed is not None:
        random.Random(seed).shuffle(indices)
    return indices[:n]


def samples_of(tasks: Iterable[Task], k: int) -> list[Planned]:
    """Return ``k`` samples of each task, sample by sample, so that an interrupted run has played most tasks."""
    firsts = [
        Planned(
            Key(task.split, task.id, None, 0),
            task.reward_range[1],
            _digest(task),
            task.level,
            task.family,
            tuple(task.tags),
        )
        for task in tasks
    ]
    return [replace(first, key=first.key._replace(sample=sample)) for sample in range(k) for first in firsts]


def of_seeds(n: int, k: int, seed: int) -> list[Planned]:
    """Return ``k`` samples of each of the ``n`` seeds from ``seed`` on, sample by sample."""
    return [Planned(Key(None, None, each, sample)) for sample in range(k) for each in range(seed, seed + n)]


def _digest(task: Task) -> str:
    return hashlib.sha256(task.model_dump_json(exclude=set(LABELS)).encode()).hexdigest()[:16]
