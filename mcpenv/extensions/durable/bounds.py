"""The bounds of a store, beyond which no session begins."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcpenv.server.sessions.operations import Operation
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import CapacityReached

from .snapshots import way_of
from .store import GO_ON, Settings, Store, StoreError, Totals

READ_S = 1.0
"""Seconds for which the sums are as they were read."""


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
        self._read_at = -math.inf
        self._beginning = 0
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def room(self, *, is_kept: bool) -> AsyncIterator[None]:
        """Begin a session in the block, if the store has room for it.

        Args:
            is_kept: False if it will be no new session of the store.

        Raises:
            CapacityReached: the store has no room, or does not answer.
        """
        if not is_kept or self._sessions == self._bytes == math.inf:
            yield
            return
        async with self._alone:
            await self._admit()
            self._beginning += 1
        try:
            yield
        except BaseException:
            self._beginning -= 1
            raise
        self._beginning -= 1
        self._totals = Totals(self._totals.sessions + 1, self._totals.bytes)

    async def _admit(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= READ_S:
            try:
                self._totals = await self._store.totals()
            except StoreError as error:
                if self._goes_on:
                    return
                raise CapacityReached(f"the store of durable sessions does not answer: {error}; try again") from error
            self._read_at = now
        sessions, size = self._totals
        for has, limit, name in (
            (sessions + self._beginning, self._sessions, "sessions"), (size, self._bytes, "bytes")
        ):  # fmt: skip
            if has >= limit:
                raise CapacityReached(
                    f"the store of durable sessions has {has} {name}, and may have {limit:.0f} (max_{name}). Its "
                    "sessions go on, and new ones are refused until some are closed, discarded or too old"
                )

    def around(self, operation: type[Operation]) -> type[Operation]:
        """Return an operation that begins an episode, and is refused before if there is no room for it."""
        bounds = self

        class Admitted(operation):  # type: ignore[valid-type,misc]
            __slots__ = ()

            async def run(self, session: Session) -> object:
                execution = session.execution
                is_new = session.credential is not None and execution.journal is None
                async with bounds.room(is_kept=is_new and way_of(execution) != "restart"):
                    return await operation.run(self, session)

        return Admitted
