"""The membership of one worker among several, and the slots of the whole server, which the hub counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import Counters
from mcpenv.server.metrics.exposition import Samples
from mcpenv.server.sessions.capacity import CapacityLimiter, MakeRoom
from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo

from . import worker_id
from .channel import Channel


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
        await self._channel.call("spend", agent)

    async def sessions(self, own: list[SessionInfo]) -> tuple[list[SessionInfo], bool]:
        """Return the descriptions of all sessions of the server, oldest first, and if a worker's are missing."""
        others = await self._channel.call("others", "sessions")
        found = [SessionInfo.model_validate(each) for answer in others for each in answer or ()]
        return sorted([*own, *found], key=lambda session: session.created_at), None in others

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """Return the counts of recorded episodes, summed over the running workers."""
        others = [each for each in await self._channel.call("others", "episodes") if each is not None]
        return {name: sum(each[name] for each in (own, *others)) for name in own}

    def counters(self) -> Counters:
        """Return counters that the hub can read, also if this process is killed."""
        return Counters(self._counts)

    async def metrics(self, own: Samples) -> list[Samples]:
        """Return the samples of all workers, and of those that are gone."""
        return [own, *await self._channel.call("metrics")]

    async def reserve(self, session_id: str) -> bool:
        """Reserve a session id that a client chose; return False if it is taken."""
        return bool(await self._channel.call("reserve", session_id))

    def hold(self, session_id: str) -> None:
        """Claim an id for a session of this worker, so that requests with it are routed here."""
        self._channel.tell("claim", session_id)

    def release_id(self, session_id: str) -> None:
        """Release a claim of `reserve` or `hold`."""
        self._channel.tell("release_id", session_id)


class SharedCapacity(CapacityLimiter):
    """The slots that the hub gives.

    Attributes:
        taken, quarantined: the counts of the whole server, as last sent by the hub.
    """

    def __init__(self, channel: Channel, limit: Callable[[], int], config: ServerConfig) -> None:
        super().__init__(limit, queue_timeout_s=config.queue_timeout_s, max_quarantined=config.max_quarantined)
        self._channel = channel
        self._asking: set[asyncio.Task[None]] = set()

    def learn(self, taken: int, quarantined: int) -> None:
        """Store the counts of the whole server that the hub sent."""
        self.taken, self.quarantined = taken, quarantined

    async def status(self) -> ServerCapacityStatus:
        """Return the present counts and limits of the whole server."""
        status = ServerCapacityStatus.model_validate(await self._channel.call("capacity"))
        return status if self.unready is None else status.model_copy(update={"ready": False, "reason": self.unready})

    async def take(self, make_room: MakeRoom, orchestrated: bool) -> None:
        """Acquire a slot; if all are taken, wait in the queue. Cancelling releases the place or the slot.

        Args:
            make_room: not called: the hub asks all workers for a session to evict.

        Raises:
            CapacityReached: no slot became free in time, or no slots are given.
        """
        if self.shut:
            raise self.refusal(self.shut)
        asking = asyncio.ensure_future(self._channel.call("take", orchestrated, undo=partial(self.free, orchestrated)))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            if not asking.cancel() and not asking.cancelled() and asking.exception() is None:
                self.free(orchestrated)  # the slot came before the caller was cancelled
            raise
        if asking.cancelled():
            raise self.refusal("this server is about to end")
        asking.result()

    def free(self, orchestrated: bool = True) -> None:
        """Release a slot."""
        self._channel.tell("free", orchestrated)

    def close(self) -> None:
        """Give no more slots, and refuse those that wait for one."""
        self.closed = True
        for asking in self._asking:
            asking.cancel()

    def count_quarantined(self, many: int) -> None:
        """Add to the count of quarantined instances; ``many`` may be negative."""
        super().count_quarantined(many)
        self._channel.tell("quarantine", many)
