"""Branches in exports of whole episodes: a row names an earlier one, and has the messages and steps that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.samples.trees import common
from mcpenv_client.types.records import Fork


@dataclass(frozen=True)
class Shared:
    """The part of an episode that an earlier row has.

    Attributes:
        of: the number of that row, from 0.
        messages, steps: the numbers of first messages and steps that both have.
        tools: True if both have the same tools.
    """

    of: int
    messages: int
    steps: int
    tools: bool

    def cut(self, chat: dict[str, Any]) -> dict[str, Any]:
        """Return a row of a chat without that part."""
        prefix = {"of": self.of, "messages": self.messages, "tools": self.tools}
        rest = {"messages": chat["messages"][self.messages :], "tools": [] if self.tools else chat["tools"]}
        return {**chat, **rest, "prefix": prefix}


class SharedEpisodes:
    """Finds what the episodes of one file have in common, in their order."""

    def __init__(self) -> None:
        self._rows = 0
        self._kept: dict[str | Fork, tuple[int, Sequence[Any], Sequence[Any]]] = {}

    def next(self, episode: RecordedEpisode, chat: dict[str, Any]) -> Shared | None:
        """Take the next episode of the file. Return what it shares with its parent, or the first branch of its point.

        Args:
            chat: its row, with messages and tools.
        """
        number, messages, tools = self._rows, chat["messages"], chat["tools"]
        self._rows += 1
        origin = episode.trajectory.forked_from
        self._kept.setdefault(episode.id, (number, messages, tools))
        if origin is None:
            return None
        base = self._kept.get(origin.episode_id) or self._kept.get(origin)
        self._kept.setdefault(origin, (number, messages, tools))
        if base is None:
            return None
        of, earlier, its = base
        return Shared(of, common(messages, earlier), origin.step, tools == its)
