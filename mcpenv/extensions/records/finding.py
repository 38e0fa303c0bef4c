"""Findings: faults of episodes in a record, by kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kind of a finding."""

    DAMAGED = "damaged"
    """A part of the record cannot be read."""
    LOST = "lost"
    """Episodes are missing, because they could not be written."""
    DUPLICATE = "duplicate"
    """The same episode is in the record more than once, under the same id or as a copy under another one."""
    NO_CALLS = "no_calls"
    """An episode has no call."""
    FAILED_LAST_CALL = "failed_last_call"
    """The last call of an episode failed."""
    ALWAYS_FAILS = "always_fails"
    """Every episode of a task ended by an error of the environment or of its judge."""
    REWARD_OUT_OF_RANGE = "reward_out_of_range"
    """The value of an end is outside the ``reward_range`` of its task."""
    WRONG_RETURN = "wrong_return"
    """The recorded return is not the sum of the recorded rewards."""
    COST_OUTLIER = "cost_outlier"
    """An episode took far more steps, seconds or tokens than the other ones."""


@dataclass(frozen=True)
class Finding:
    """The fault of one or more episodes.

    Attributes:
        kind: the kind of the fault.
        subject: the id of the episode, the place in a file, or the name of the task or environment that always fails.
        text: the facts, in one line.
        episodes: the ids of the episodes.
        task: the name of the task with its split; None without a task, and if no episode could be read.
    """

    kind: Kind
    subject: str
    text: str
    episodes: list[str] = field(default_factory=list)
    task: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return the finding as plain JSON data."""
        return asdict(self)
