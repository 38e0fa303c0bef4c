"""Define the results of a validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.types.tasks import Task

SOURCE_PAYS = "source_pays"
"""The key in a task's metadata of the reason why the rule of its source pays an agent that does not do the work."""


@dataclass(slots=True)
class TaskReport:
    """The results for one task.

    Attributes:
        task: the task.
        oracle: the score of its oracle; None if it has none, or it was not scored.
        nothing: the score of doing nothing.
        at_random: the score of each random play.
        shortened: the score of the oracle without one of its calls, for each call that was left out; empty if the
            task has no oracle of several calls that scores full, or the environment no world that repeats.
        malformed: the score of calls that do not fit the tools' schemas, and of tools that do not exist.
        repeats: True if the same calls gave the same results twice; None if that could not be tested.
        problems: one sentence for each problem; empty if there is none.
        remedies: the remedy for each problem.
        known: one sentence for each full score without the work that the task's metadata announces (`SOURCE_PAYS`).
        crashes: the exceptions that tools raised instead of a ToolError, with file and line, by the tool's name.
        digest: the hash of the outcomes of the repeated play: equal tasks and seeds give equal hashes.
    """

    task: Task
    oracle: float | None = None
    nothing: float | None = None
    at_random: list[float | None] = field(default_factory=list)
    repeats: bool | None = None
    problems: list[str] = field(default_factory=list)
    malformed: float | None = None
    shortened: list[float | None] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    digest: str | None = None
    crashes: dict[str, str] = field(default_factory=dict)

    @property
    def has_oracle(self) -> bool:
        """True if the task has an oracle. Without one, the task is not known to be solvable."""
        return self.task.oracle is not None

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        played = ("oracle", "nothing", "malformed", "shortened", "repeats", "digest", "problems", "known", "crashes")
        return {
            "id": self.task.id,
            "split": self.task.split,
            "reward_range": list(self.task.reward_range),
            "has_oracle": self.has_oracle,
            "random": self.at_random,
            **{name: getattr(self, name) for name in played},
        }


@dataclass(slots=True)
class Report:
    """The results for all tasks."""

    tasks: list[TaskReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no task has a problem."""
        return not any(task.problems for task in self.tasks)

    def to_plain(self) -> dict[str, Any]:
        """Return the report as plain JSON data."""
        return {
            "ok": self.ok,
            "tasks": [task.to_plain() for task in self.tasks],
            "without_oracle": [task.task.id for task in self.tasks if not task.has_oracle],
        }
