"""Membership: what a server needs to know of being the only worker, or one of several that are one server."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from mcpenv.server.config import ServerConfig
from mcpenv_client.types.server import SessionInfo

from .capacity import Slots
from .rate_limit import Rate


class Membership(Protocol):
    """What is for the whole server, however many workers it has."""

    def new_id(self) -> str:
        """A new id of a session, or value of a handle: 192 random bits, URL-safe."""
        ...

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> Slots:
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

    async def sessions(self, own: list[SessionInfo]) -> list[SessionInfo]:
        """Return the descriptions of all sessions of the server, oldest first.

        Args:
            own: those of this worker.
        """
        ...

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """What became of all episodes that are recorded: counts by name.

        Args:
            own: those of this worker.
        """
        ...

    async def reserve(self, session_id: str) -> bool:
        """Whether nobody has that id, which a client chose; from now on this worker does, until `let_go`."""
        ...

    def hold(self, session_id: str) -> None:
        """A session has an id that its client chose; requests that name it belong here, until `let_go`."""
        ...

    def let_go(self, session_id: str) -> None:
        """What `reserve` or `hold` said is so no more."""
        ...


class Alone:
    """The membership of the only worker."""

    def __init__(self, config: ServerConfig) -> None:
        self._rate = None if config.max_requests_per_s is None else Rate(config.max_requests_per_s)

    def new_id(self) -> str:
        """A new id."""
        return secrets.token_urlsafe(24)

    def slots(self, limit: Callable[[], int], config: ServerConfig) -> Slots:
        """The slots."""
        return Slots(limit, queue_timeout_s=config.queue_timeout_s, max_quarantined=config.max_quarantined)

    async def spend(self, agent: str) -> None:
        """Count a request."""
        if self._rate is not None:
            self._rate.spend(agent)

    async def sessions(self, own: list[SessionInfo]) -> list[SessionInfo]:
        """Return this worker's, which are all."""
        return own

    async def recorded(self, own: dict[str, int]) -> dict[str, int]:
        """There are no others."""
        return own

    async def reserve(self, session_id: str) -> bool:
        """The pool knows its own."""
        return True

    def hold(self, session_id: str) -> None:
        """Nobody else needs to know."""

    def let_go(self, session_id: str) -> None:
        """Nobody else needs to know."""
