"""Membership: a worker's view of its server, as the only worker or as one of several."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import Counters
from mcpenv.server.metrics.exposition import Samples
from mcpenv_client.types.server import SessionInfo

from .capacity import CapacityLimiter
from .rate_limit import Rate


class Membership(Protocol):
    """The operations that concern the whole server, however many workers it has."""

    def new_id(self) -> str:
        """Return a new session id or handle value: 128 random bits, URL-safe."""
        ...

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> CapacityLimiter:
        """The slots of the whole server.

        Args:
            limit: says how many there are; known only when the environment's class is.
        """
        ...

    async def spend(self, agent: str) -> None:
        """Count a request of an agent.

        Raises:
            RateLimited: it sent too many; this one is not counted.
        """
        ...

    async def sessions(self, own: list[SessionInfo]) -> tuple[list[SessionInfo], bool]:
        """Return the descriptions of all sessions of the server, oldest first, and True if some are missing.

        Those of a worker that does not answer are missing.

        Args:
            own: those of this worker.
        """
        ...

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """Return the counts of recorded episodes of all workers, by name.

        Args:
            own: those of this worker.
        """
        ...

    def counters(self) -> Counters:
        """Return new counters for the sessions of this worker."""
        ...

    async def metrics(self, own: Samples) -> list[Samples]:
        """Return the samples of all workers, and of those that are gone.

        Args:
            own: those of this worker.
        """
        ...

    async def reserve(self, session_id: str) -> bool:
        """Reserve an id that a client chose, until `release_id`. Return True if it was free."""
        ...

    def hold(self, session_id: str) -> None:
        """Route requests that name this id, which a client chose, to this worker, until `release_id`."""
        ...

    def release_id(self, session_id: str) -> None:
        """Release what `reserve` or `hold` claimed."""
        ...


class Alone:
    """The membership of the only worker."""

    def __init__(self, config: ServerConfig) -> None:
        self._rate = None if config.max_requests_per_s is None else Rate(config.max_requests_per_s)

    def new_id(self) -> str:
        """Return a new id."""
        return secrets.token_urlsafe(16)

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> CapacityLimiter:
        """Return this worker's slots."""
        return CapacityLimiter(
            limit,
            queue_timeout_s=config.queue_timeout_s,
            max_quarantined=config.max_quarantined,
            reserves=config.reserves_sessions,
        )

    async def spend(self, agent: str) -> None:
        """Count a request."""
        if self._rate is not None:
            self._rate.spend(agent)

    async def sessions(self, own: list[SessionInfo]) -> tuple[list[SessionInfo], bool]:
        """Return this worker's, which are all."""
        return own, False

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """Return the counts as they are: there are no other workers."""
        return own

    def counters(self) -> Counters:
        """Return counters in the memory of this process."""
        return Counters()

    async def metrics(self, own: Samples) -> list[Samples]:
        """Return this worker's, which are all."""
        return [own]

    async def reserve(self, session_id: str) -> bool:
        """Return True: the pool knows its own ids."""
        return True

    def hold(self, session_id: str) -> None:
        """Do nothing: there is no other worker."""

    def release_id(self, session_id: str) -> None:
        """Do nothing: there is no other worker."""
