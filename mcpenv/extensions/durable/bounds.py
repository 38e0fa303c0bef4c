"""The bounds of a store, beyond which no session begins."""

from __future__ import annotations

import math
import time

from mcpenv.server.sessions.operations import Operation
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import CapacityReached

from .snapshots import way_of
from .store import GO_ON, Settings, Store, StoreError, Totals

SHARE = 100
"""The sums are read at most in one part of so many of the time."""


class Bounds:
    """Refuses new sessions of a store that is full. Its sessions go on: what was promised to them is kept.

    Args:
        settings: have ``max_sessions`` and ``max_bytes``.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._sessions: float = settings.max_sessions or math.inf
        self._bytes: float = settings.max_bytes or math.inf
        self._goes_on = settings.unreachable == GO_ON
        self._store = store
        self._totals = Totals(0, 0)
        self._read_again = 0.0

    async def admit(self, session: Session) -> None:
        """Refuse a session that would be a new one in the store, if that has no room.

        Raises:
            CapacityReached: it has none, or does not answer.
        """
        if (
            session.credential is None
            or session.execution.journal is not None
            or way_of(session.execution) == "restart"
        ):
            return
        if self._sessions == self._bytes == math.inf:
            return
        began = time.monotonic()
        if began >= self._read_again:
            try:
                self._totals = await self._store.totals()
            except StoreError as error:
                if self._goes_on:
                    return
                raise CapacityReached(f"the store of durable sessions does not answer: {error}; try again") from error
            self._read_again = time.monotonic() + (time.monotonic() - began) * SHARE
        sessions, size = self._totals
        for has, limit, name in ((sessions, self._sessions, "sessions"), (size, self._bytes, "bytes")):
            if has >= limit:
                raise CapacityReached(
                    f"the store of durable sessions has {has} {name}, and may have {limit:.0f} (max_{name}). Its "
                    "sessions go on, and new ones are refused until some are closed, discarded or too old"
                )
        self._totals = Totals(sessions + 1, size)

    def around(self, operation: type[Operation]) -> type[Operation]:
        """Return an operation that begins an episode, and is refused before if there is no room for it."""
        bounds = self

        class Admitted(operation):  # type: ignore[valid-type,misc]
            __slots__ = ()

            async def run(self, session: Session) -> object:
                await bounds.admit(session)
                return await operation.run(self, session)

        return Admitted
