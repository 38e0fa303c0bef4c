"""The limit on the number of instances, the queue for a free one, and the instances in quarantine.

A slot is taken before an instance is made and free when it is closed; those between are counted all the time. Where
orchestrators have a control token, a share of the slots is for them alone, so that agents cannot take them all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from mcpenv_client.errors import CapacityReached
from mcpenv_client.types.server import ServerCapacityStatus

RETRY_AFTER_S = 5.0
"""Seconds after which a refused client should retry."""

RESERVED = 4
"""The reserved share: one slot of so many is for orchestrators, at least one where there are two."""

MakeRoom = Callable[[bool], Awaitable[None]]
"""Frees a slot, if it can, for a session that has an orchestrator (or has none)."""


class CapacityLimiter:
    """The slots of a server, given in the order in which they were asked for.

    Args:
        limit: says how many there are; known only when the environment's class is.
        queue_timeout_s: how long a client waits for one.
        max_quarantined: instances left in code that cannot be stopped, above which no slot is given.
        reserves: True if a share is reserved for sessions with an orchestrator, who are also served before agents.

    Attributes:
        agents: how many of the taken slots are for sessions without an orchestrator.
        taken: how many instances are being made, at work or being closed.
        quarantined: how many have been left behind with code that could not be stopped.
        closed: no more are given.
        connections_full: says if all connections of this process are in use.
    """

    def __init__(
        self, limit: Callable[[], int], *, queue_timeout_s: float, max_quarantined: int, reserves: bool = False
    ) -> None:
        self._limit = limit
        self._queue_timeout_s = queue_timeout_s
        self._max_quarantined = max_quarantined
        self._reserves = reserves
        self._queue: deque[tuple[asyncio.Future[None], bool]] = deque()
        self.agents = 0
        self.taken = 0
        self.quarantined = 0
        self.closed = False
        self.connections_full: Callable[[], bool] = lambda: False

    @property
    def limit(self) -> int:
        """The number of slots."""
        return self._limit()

    @property
    def agents_limit(self) -> int:
        """The number of slots that sessions without an orchestrator may have."""
        limit = self.limit
        return limit - max(1, limit // RESERVED) if self._reserves and limit > 1 else limit

    @property
    def waiting(self) -> int:
        """The number of clients that wait for a slot."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """True if all slots are taken."""
        return self.taken >= self.limit

    @property
    def shut(self) -> str | None:
        """The reason why no new sessions are accepted; None if they are."""
        if self.closed:
            return "this server is about to end"
        overrun = self.quarantined > self._max_quarantined
        return "too many environments are stuck in code that cannot be stopped" if overrun else None

    @property
    def unready(self) -> str | None:
        """The reason why no new sessions are accepted from new connections; None if they are."""
        return self.shut or ("all connections are in use" if self.connections_full() else None)

    async def status(self) -> ServerCapacityStatus:
        """Return the present counts and limits of the whole server."""
        return ServerCapacityStatus(
            active_sessions=self.taken,
            max_sessions=self.limit,
            waiting=self.waiting,
            quarantined=self.quarantined,
            ready=self.unready is None,
            reason=self.unready,
        )

    async def take(self, make_room: MakeRoom, orchestrated: bool) -> None:
        """Acquire a slot, or wait for one in a queue. Cancelling gives up the place, or the slot.

        Args:
            make_room: called when all are taken and no caller waits.
            orchestrated: whether it is for a session that has an orchestrator; who gives way depends on it.

        Raises:
            CapacityReached: none came in time, or none are given.
        """
        if self.shut:
            raise self.refusal(self.shut)
        if self._place(orchestrated) == 0:
            if self._has_room(orchestrated):
                self._count(orchestrated)
                return
            await make_room(orchestrated)
            if self.closed:
                raise self.refusal("this server is about to end")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.insert(self._place(orchestrated), (waiter, orchestrated))
        self._give()  # a slot may have been released while no caller waited
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await waiter
        except TimeoutError as error:
            if _granted(waiter):
                return  # the slot came at the last moment
            raise self.refusal(self._in_use()) from error
        except asyncio.CancelledError:
            if _granted(waiter):
                self.free(orchestrated)
            raise
        finally:
            if (waiter, orchestrated) in self._queue:
                self._queue.remove((waiter, orchestrated))

    def free(self, orchestrated: bool = True) -> None:
        """Release a slot to the client that has waited longest.

        Args:
            orchestrated: as it was taken.
        """
        self.taken -= 1
        self.agents -= not orchestrated
        self._give()

    def close(self) -> None:
        """Accept no further session, and refuse the clients that wait."""
        self.closed = True
        queue, self._queue = self._queue, deque()
        for waiter, _ in queue:
            if not waiter.done():
                waiter.set_exception(self.refusal("this server is about to end"))

    def refusal(self, why: str) -> CapacityReached:
        """Return the error for a client without a slot."""
        return CapacityReached(why, active_sessions=self.taken, max_sessions=self.limit, retry_after_s=RETRY_AFTER_S)

    def quarantine(self) -> Callable[[], None]:
        """Count an instance whose code could not be stopped. Return a function that ends the count, from any thread."""
        self.count_quarantined(1)
        loop = asyncio.get_running_loop()

        def returned() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.count_quarantined, -1)

        return returned

    def count_quarantined(self, many: int) -> None:
        """Change the number of quarantined instances by ``many``."""
        self.quarantined += many
        self._give()

    def _has_room(self, orchestrated: bool) -> bool:
        return not self.full and (orchestrated or self.agents < self.agents_limit)

    def _place(self, orchestrated: bool) -> int:
        """Return how many in the queue are served before one who comes now."""
        if self._reserves and orchestrated:
            return sum(first for _, first in self._queue)
        return len(self._queue)

    def _count(self, orchestrated: bool) -> None:
        self.taken += 1
        self.agents += not orchestrated

    def _give(self) -> None:
        # Where the first has no room nobody has: with a reserved share, orchestrators come before agents.
        while self._queue and not self.shut and self._has_room(self._queue[0][1]):
            waiter, orchestrated = self._queue.popleft()
            if not waiter.done():
                self._count(orchestrated)
                waiter.set_result(None)

    def _in_use(self) -> str:
        limit = self.limit
        if limit == 1:
            return (
                "the only session is in use. More need SUPPORTS_CONCURRENT_SESSIONS = True on the environment's class, "
                "and --max-sessions above 1 if it is set"
            )
        if self.full:
            return f"all {limit} sessions are in use. For more, raise --max-sessions"
        return (
            f"agents use their {self.agents_limit} of {limit} sessions; the others are for orchestrators. For more, "
            "raise --max-sessions"
        )


def _granted(waiter: asyncio.Future[None]) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None
