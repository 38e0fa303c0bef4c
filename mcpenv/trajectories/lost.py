"""The gap of a record: a line in place of the episodes that could not be written."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from pydantic_core import to_json

from .episode import FORMAT

_BEGINNING = b'{"lost":'


@dataclass(frozen=True, slots=True)
class Lost:
    """The episodes that one writer lost in a row.

    Attributes:
        episodes, steps: the numbers of episodes, and of their steps.
        since, until: when the first and the last one were lost, in seconds since the epoch.
        why: the reason for which the first one was lost.
    """

    episodes: int
    steps: int
    since: float
    until: float
    why: str

    def __add__(self, later: Lost) -> Lost:
        """Return both as one gap."""
        episodes, steps = self.episodes + later.episodes, self.steps + later.steps
        return Lost(episodes, steps, self.since, later.until, self.why)

    def __str__(self) -> str:
        """Return a sentence about it."""
        return (
            f"{self.episodes} episode{'s' * (self.episodes != 1)} with {self.steps} step{'s' * (self.steps != 1)} "
            f"lost before this place: {self.why}"
        )

    def line(self) -> bytes:
        """Return the line of the record."""
        return to_json({"lost": dataclasses.asdict(self), "format": FORMAT}) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Lost | None:
        """Return the gap of a line; None if the line is none."""
        if not line.startswith(_BEGINNING):
            return None
        try:
            read = json.loads(line)["lost"]
            numbers = int(read["episodes"]), int(read["steps"]), float(read["since"]), float(read["until"])
            return cls(*numbers, str(read["why"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
