"""Count the tasks of a split: their levels, families, tags, solutions and canaries."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mcpenv.tasks import TaskSet
from mcpenv_client.types.tasks import Task

from .plays import Step

PAGE = 100
"""Tasks that are made at once."""


@dataclass
class Counted:
    """The figures of the first tasks of a split, or of all.

    Attributes:
        size: the tasks of the split.
        number: the tasks that were counted.
        levels: the number of tasks of each level.
        families: the families of tasks, and of the goals of which tasks are composed.
        tags: the tags of tasks.
        with_solution: the number of tasks that have one.
        with_canary: the number of tasks that show a canary line to an agent.
        digests: a hash of what makes each task another one: its prompt, start and verifier.
    """

    size: int
    number: int = 0
    levels: Counter[int] = field(default_factory=Counter)
    families: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    with_solution: int = 0
    with_canary: int = 0
    digests: set[bytes] = field(default_factory=set)

    def add(self, task: Task) -> None:
        """Count a task."""
        self.number += 1
        if task.level is not None:
            self.levels[task.level] += 1
        composed_of = task.metadata.get("families")
        self.families.update(composed_of if isinstance(composed_of, list) else filter(None, [task.family]))
        self.tags.update(task.tags)
        self.with_solution += task.oracle is not None
        self.with_canary += _has_canary(task)
        self.digests.add(_digest_of(task))

    def to_plain(self, split: str) -> dict[str, Any]:
        """Return the figures as plain JSON data."""
        return {
            "split": split,
            "tasks": self.size,
            "looked_at": self.number,
            "levels": {str(level): number for level, number in sorted(self.levels.items())},
            "families": len(self.families),
            "tags": sorted(self.tags),
            "with_solution": self.with_solution,
            "with_canary": self.with_canary,
        }


def count(tasks: TaskSet, split: str, most: int | None, on_step: Step) -> Counted:
    """Return the figures of the first tasks of a split.

    Args:
        most: the maximum number of tasks; None for all.
        on_step: called after each task.
    """
    counted = Counted(tasks.sizes()[split])
    end = counted.size if most is None else min(most, counted.size)
    for start in range(0, end, PAGE):
        for task in tasks.range(split, start, min(start + PAGE, end)):
            counted.add(task)
            on_step()
    return counted


def _has_canary(task: Task) -> bool:
    shown = task.model_dump(mode="json", include={"prompt", "options"})
    return "canary" in json.dumps(shown).casefold()


def _digest_of(task: Task) -> bytes:
    own = task.model_dump(mode="json", include={"prompt", "options", "seed", "verifier", "metadata"})
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).digest()
