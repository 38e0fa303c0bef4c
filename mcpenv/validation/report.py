"""Reports: what was found out about each task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.tasks import Task


@dataclass(slots=True)
class TaskReport:
    """One task.

    Attributes:
        task: the task.
        oracle: what its oracle scores; None if it has none, or it was not scored.
        nothing: what doing nothing scores.
        at_random: what each random play scores.
        repeats: whether the same calls gave the same twice; None if that could not be tried.
        problems: what is wrong, a sentence each; empty if nothing is.
    """

    task: Task
    oracle: float | None = None
    nothing: float | None = None
    at_random: list[float | None] = field(default_factory=list)
    repeats: bool | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def has_oracle(self) -> bool:
        """Whether somebody wrote down how it is solved; if not, nobody has seen that it can be."""
        return self.task.oracle is not None

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "id": self.task.id,
            "split": self.task.split,
            "reward_range": list(self.task.reward_range),
            "has_oracle": self.has_oracle,
            "oracle": self.oracle,
            "nothing": self.nothing,
            "random": self.at_random,
            "repeats": self.repeats,
            "problems": self.problems,
        }


@dataclass(slots=True)
class Report:
    """All tasks that were tried."""

    tasks: list[TaskReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no task has a problem."""
        return not any(task.problems for task in self.tasks)

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "ok": self.ok,
            "tasks": [task.to_plain() for task in self.tasks],
            "without_oracle": [task.task.id for task in self.tasks if not task.has_oracle],
        }
