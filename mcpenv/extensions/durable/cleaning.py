"""The cleaning of a store: episodes that no server has recorded are recorded, and what nobody continues is deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from mcpenv.server.app import EnvServer
from mcpenv_client.types.records import Trajectory, summed

from .rerun import episode_of
from .store import RECORDED, Claimant, Entry, Fenced, KeptSession, Owned, Settings, Store, StoreError

logger = logging.getLogger("mcpenv")

LATER = 2
"""After so many times `Settings.keep_s`, sessions are deleted that no server has recorded."""


class Cleaner:
    """Cleans the store of a server.

    Args:
        claimant: returns the server, as one that asks for sessions.
        is_here: returns True if the server has a session of that id, continues it, or puts it away.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        server: EnvServer,
        claimant: Callable[[], Claimant],
        is_here: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._settings = settings
        self._source = server.source
        self._claimant = claimant
        self._is_here = is_here
        self._held: dict[str, asyncio.Future[None]] = {}
        self._swept = float("-inf")

    def holds(self, session_id: str) -> bool:
        """Return True while the cleaner owns a session."""
        return session_id in self._held

    async def let_go(self, session_id: str) -> None:
        """Return once the cleaner does not own a session."""
        while (held := self._held.get(session_id)) is not None:
            await asyncio.wait({held})

    async def clean(self) -> None:
        """Record the episodes whose servers were lost between their end and their record, and those of lost clients."""
        try:
            if self._source.recorder is not None:
                before = time.time() - self._settings.keep_s
                for session_id in await self._store.unrecorded(self._claimant().environment, before):
                    await self._record(session_id, before)
            if time.monotonic() - self._swept > self._settings.keep_s / 10:
                self._swept = time.monotonic()
                await self._store.sweep(time.time() - LATER * self._settings.keep_s)
        except StoreError as error:
            logger.warning("the store of durable sessions: %s", error)

    async def _record(self, session_id: str, before: float) -> None:
        if self._is_here(session_id) or self.holds(session_id):
            return
        held = self._held[session_id] = asyncio.get_running_loop().create_future()
        kept: KeptSession | None = None
        try:
            kept = await self._store.claim(session_id, self._claimant(), None)
            if kept is not None and await self._recorded(kept, before):
                kept = None
        except (Owned, Fenced):
            pass  # its client has come back, to this server or another one
        except StoreError:
            raise
        except Exception:
            logger.exception("session %s cannot be recorded", session_id[:8])
        finally:
            try:
                if kept is not None:
                    await self._store.release(kept.id, kept.fence)
            finally:
                del self._held[session_id]
                held.set_result(None)

    async def _recorded(self, kept: KeptSession, before: float) -> bool:
        """Record a session's episode, if it is still to be recorded. Return True if the session is deleted then."""
        entries, source = await self._store.entries(kept.id), self._source
        known = any(entry.number == RECORDED for entry in entries)
        if known or not (kept.over or kept.updated < before) or source.recorder is None:
            return False  # its client was here meanwhile
        trajectory = episode_of(kept, entries)
        sink = source.recorder.sink_for(source.name, source.version, lambda: None, source.tasks)
        sink.episode_over(trajectory if kept.over else _abandoned(trajectory, kept.updated))
        if not await sink.written(trajectory.episode_id):
            return False
        if kept.over:
            await self._store.append(kept.id, kept.fence, [Entry(RECORDED, b"1")], None)
            return False
        return await self._store.discard(kept.id, kept.fence)


def _abandoned(trajectory: Trajectory, at: float) -> Trajectory:
    """Return the trajectory of an episode for which no client came back.

    Args:
        at: the time of its last write, in seconds since the epoch.
    """
    trajectory.total_reward = summed(trajectory.reward_values)
    trajectory.ended_at, trajectory.reason = at, "disconnected"
    trajectory.status = trajectory.status or trajectory.ending_status()
    return trajectory
