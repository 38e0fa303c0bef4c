"""The membership of one worker among several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import Counters
from mcpenv.server.metrics.exposition import Samples
from mcpenv.server.sessions.capacity import CapacityLimiter
from mcpenv_client.types.server import SessionInfo

from . import worker_id
from .capacity import SharedCapacity
from .messages import (
    CollectMetrics,
    CountEpisodes,
    Done,
    EpisodeCounts,
    HoldId,
    ListSessions,
    Metrics,
    ReleaseId,
    Reserve,
    Sessions,
    SpendRequest,
    Verdict,
)
from .rpc import Channel


class Member:
    """The membership that asks the hub for everything that concerns the whole server.

    Args:
        counts: the file for the worker's counters.
    """

    def __init__(self, channel: Channel, worker: str, counts: Path) -> None:
        self._channel = channel
        self._tag = worker
        self._counts = counts
        self.shared_slots: SharedCapacity | None = None

    def new_id(self) -> str:
        """Return a new id with this worker's tag."""
        return worker_id.new_id(self._tag)

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> CapacityLimiter:
        """Return the slots of the whole server."""
        self.shared_slots = SharedCapacity(self._channel, limit, config)
        return self.shared_slots

    async def spend(self, agent: str) -> None:
        """Count a request of an agent.

        Raises:
            RateLimited: the agent exceeded its rate; this request is not counted.
        """
        await self._channel.call(SpendRequest(agent=agent), Done)

    async def sessions(self, own: list[SessionInfo]) -> list[SessionInfo]:
        """Return the descriptions of all sessions of the server, oldest first."""
        others = (await self._channel.call(ListSessions(), Sessions)).sessions
        return sorted([*own, *others], key=lambda session: session.created_at)

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """Return the counts of recorded episodes, summed over the running workers."""
        others = (await self._channel.call(CountEpisodes(), EpisodeCounts)).counts
        return {name: sum(each[name] for each in (own, *others)) for name in own}

    def counters(self) -> Counters:
        """Return counters that the hub can read, also if this process is killed."""
        return Counters(self._counts)

    async def metrics(self, own: Samples) -> list[Samples]:
        """Return the samples of all workers, and of those that are gone."""
        return [own, *(await self._channel.call(CollectMetrics(), Metrics)).samples]

    async def reserve(self, session_id: str) -> bool:
        """Reserve a session id that a client chose; return False if it is taken."""
        return (await self._channel.call(Reserve(session_id=session_id), Verdict)).yes

    def hold(self, session_id: str) -> None:
        """Claim an id for a session of this worker, so that requests with it are routed here."""
        self._channel.tell(HoldId(session_id=session_id))

    def release_id(self, session_id: str) -> None:
        """Release a claim of `reserve` or `hold`."""
        self._channel.tell(ReleaseId(session_id=session_id))
