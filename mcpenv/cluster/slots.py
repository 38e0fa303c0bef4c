"""The slots of the whole server, as one of its workers sees them: the hub has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..config import ServerConfig
from ..slots import MakeRoom, Occupancy, Slots
from .channel import Channel


class SharedSlots(Slots):
    """Slots that are given by the hub.

    Attributes:
        taken, quarantined: on the whole server, when it was last heard of.
    """

    def __init__(self, channel: Channel, limit: Callable[[], int], config: ServerConfig) -> None:
        super().__init__(limit, queue_timeout_s=config.queue_timeout_s, max_quarantined=config.max_quarantined)
        self._channel = channel
        self._asking: set[asyncio.Task[None]] = set()

    def learn(self, taken: int, quarantined: int) -> None:
        """What the hub says of the whole server."""
        self.taken, self.quarantined = taken, quarantined

    async def occupancy(self) -> Occupancy:
        """How it stands now."""
        taken, limit, waiting, quarantined, is_open = await self._channel.call("occupancy")
        return Occupancy(taken, limit, waiting, quarantined, is_open and self.open)

    async def take(self, make_room: MakeRoom, orchestrated: bool) -> None:
        """Take a slot; when there is none, wait in line.

        Args:
            make_room: not asked: the hub asks all workers who gives way.

        Raises:
            CapacityReached: none came in time, or none are given.
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
        """Give a slot back."""
        self._channel.tell("free")

    def close(self) -> None:
        """Give no more; who waits is refused."""
        self.closed = True
        for asking in self._asking:
            asking.cancel()

    def count_quarantined(self, many: int) -> None:
        """There are so many more, or fewer, in code that cannot be stopped."""
        super().count_quarantined(many)
        self._channel.tell("quarantined", many)

    async def _ask(self, orchestrated: bool) -> None:
        await self._channel.call("take", orchestrated, undo=lambda _: self.free())

    def _give_back(self, asking: asyncio.Task[None]) -> None:
        """Whoever asked has gone, and it came nevertheless."""
        if not asking.cancelled() and asking.exception() is None:
            self.free()
