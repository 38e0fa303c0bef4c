"""The slots of the whole server, for one of its workers. The hub counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mcpenv.server.config import ServerConfig
from mcpenv.server.sessions.capacity import CapacityLimiter, MakeRoom
from mcpenv_client.types.server import ServerCapacityStatus

from .messages import Capacity, Done, FreeSlot, GetCapacity, Quarantined, TakeSlot
from .rpc import Channel


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
        status = (await self._channel.call(GetCapacity(), Capacity)).status
        return status if self.open else status.model_copy(update={"ready": False})

    async def take(self, make_room: MakeRoom, orchestrated: bool) -> None:
        """Acquire a slot; if all are taken, wait in the queue. Cancelling releases the place or the slot.

        Args:
            make_room: not called: the hub asks all workers for a session to evict.

        Raises:
            CapacityReached: no slot became free in time, or no slots are given.
        """
        if not self.open:
            raise self.refusal("this server takes no new sessions now")
        asking = asyncio.ensure_future(self._ask(orchestrated))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            if self.closed and asking.cancelled():
                raise self.refusal("this server is about to end") from None
            asking.cancel()
            asking.add_done_callback(self._give_back)
            raise

    def free(self) -> None:
        """Release a slot."""
        self._channel.tell(FreeSlot())

    def close(self) -> None:
        """Give no more slots, and refuse those that wait for one."""
        self.closed = True
        for asking in self._asking:
            asking.cancel()

    def count_quarantined(self, many: int) -> None:
        """Add to the count of quarantined instances; ``many`` may be negative."""
        super().count_quarantined(many)
        self._channel.tell(Quarantined(change=many))

    async def _ask(self, orchestrated: bool) -> None:
        await self._channel.call(TakeSlot(orchestrated=orchestrated), Done, undo=self.free)

    def _give_back(self, asking: asyncio.Task[None]) -> None:
        """Release a slot that was given after its caller was cancelled."""
        if not asking.cancelled() and asking.exception() is None:
            self.free()
