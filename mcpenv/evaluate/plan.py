"""Plan: which episodes an evaluation has, each a sample of a task or of a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from mcpenv_client.tasks import Task


class Key(NamedTuple):
    """What makes an episode of an evaluation the one that it is.

    Attributes:
        task: the task's id; None for an environment without tasks, whose episodes are told apart by ``seed``.
        split: that of the task.
        seed: None for a task, which brings its own.
        sample: 0-based.
    """

    split: str | None
    task: str | None
    seed: int | None
    sample: int

    @property
    def unit(self) -> tuple[str | None, str | None, int | None]:
        """What its samples are samples of."""
        return self[:3]

    def __str__(self) -> str:
        of = f"seed {self.seed}" if self.task is None else str(self.task)
        return f"{of}, sample {self.sample}"


@dataclass(frozen=True)
class Planned:
    """An episode that is to be played.

    Attributes:
        full_reward: what a solved task is worth (`worth_of`); None where there is no task.
        digest: of the task as it is now; None where there is none.
    """

    key: Key
    full_reward: float | None = None
    digest: str | None = None


def chosen(size: int, n: int | None, seed: int | None) -> list[int]:
    """Which tasks of a split are played. A larger ``n`` keeps those of a smaller.

    Args:
        size: how many there are.
        n: how many are wanted; None for all.
        seed: draws them at random; None takes the first ones.
    """
    indices = list(range(size))
    if seed is not None:
        random.Random(seed).shuffle(indices)
    return indices[:n]


def samples_of(tasks: Iterable[Task], k: int) -> list[Planned]:
    """``k`` samples of each task, first one of every task: what is stopped early has seen most of them."""
    firsts = [Planned(Key(task.split, task.id, None, 0), task.reward_range[1], _digest(task)) for task in tasks]
    return [replace(first, key=first.key._replace(sample=sample)) for sample in range(k) for first in firsts]


def of_seeds(n: int, k: int, seed: int) -> list[Planned]:
    """``k`` samples each of the ``n`` seeds from ``seed`` on."""
    return [Planned(Key(None, None, each, sample)) for sample in range(k) for each in range(seed, seed + n)]


def _digest(task: Task) -> str:
    return hashlib.sha256(task.model_dump_json().encode()).hexdigest()[:16]
