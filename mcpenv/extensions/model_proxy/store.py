"""Stores: the destinations of the turns that the proxy records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from mcpenv_client.types.model_turns import ModelTurn

from .turns import EpisodeTurns

LAST_S = 5.0
"""Seconds that the end of an episode waits for its last turns. Their agent has disconnected by then."""


class TurnStore(Protocol):
    """The interface of a store. The proxy calls it in its event loop."""

    def knows(self, episode_id: str) -> bool:
        """Return True if requests of this episode are forwarded."""
        ...

    def begin(self, episode_id: str) -> None:
        """Record that a turn has begun; `add` ends it."""
        ...

    def add(self, episode_id: str, turn: ModelTurn) -> None:
        """Store a turn. The episode may be over."""
        ...


class _Running:
    """A running episode: its turns, and the number of unfinished turns."""

    def __init__(self) -> None:
        self.turns = EpisodeTurns()
        self.open = 0
        self.settled = asyncio.Event()
        self.settled.set()

    def changed(self, by: int) -> None:
        self.open += by
        if self.open:
            self.settled.clear()
        else:
            self.settled.set()


class TurnMemory:
    """The store for episodes that run in this process. Requests of other episodes are refused."""

    def __init__(self) -> None:
        self._episodes: dict[str, _Running] = {}

    @contextlib.asynccontextmanager
    async def episode(self, episode_id: str) -> AsyncIterator[EpisodeTurns]:
        """Store the turns of an episode while the block runs, and yield them.

        The end waits for unfinished turns, at most `LAST_S`.
        """
        running = self._episodes[episode_id] = _Running()
        try:
            yield running.turns
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.settled.wait(), LAST_S)
        finally:
            del self._episodes[episode_id]

    def knows(self, episode_id: str) -> bool:
        """Return True if the episode runs."""
        return episode_id in self._episodes

    def begin(self, episode_id: str) -> None:
        """Record that a turn of a running episode has begun."""
        if (found := self._episodes.get(episode_id)) is not None:
            found.changed(1)

    def add(self, episode_id: str, turn: ModelTurn) -> None:
        """Add a turn, if the episode still runs."""
        if (found := self._episodes.get(episode_id)) is not None:
            found.turns.add(turn)
            found.changed(-1)
