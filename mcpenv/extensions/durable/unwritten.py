"""What a session has not written yet, because its store cannot be reached and the operator chose to go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .store import SNAPSHOT, Entry, Fenced, KeptSession, Store, StoreError

logger = logging.getLogger("mcpenv")

MAX_WRITES = 10_000
"""The writes of a session that wait in memory. Beyond them, its steps wait for the store."""

MAX_BYTES = 32 * 2**20
"""The size of those writes beyond which its steps wait."""

BATCH = 256
"""The writes that are made at once."""


class Unwritten:
    """Writes of one session that wait until the store answers, and are then made in their order.

    Args:
        fenced: called if another server continues the session meanwhile.
    """

    def __init__(self, store: Store, fenced: Callable[[], object]) -> None:
        self._store = store
        self._fenced = fenced
        self._begin: tuple[KeptSession, list[Entry], bool] | None = None
        self._writes: list[tuple[list[Entry], bytes | None]] = []
        self._size = 0
        self._snapshot: Entry | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """The number of writes."""
        return len(self._writes) + (self._begin is not None)

    @property
    def waits(self) -> bool:
        """True until all are made. Further ones must wait behind them."""
        return self._task is not None

    @property
    def full(self) -> bool:
        """True if no more should be added."""
        return self.count >= MAX_WRITES or self._size >= MAX_BYTES

    def begin(self, kept: KeptSession, entries: list[Entry], *, new: bool) -> None:
        """Begin an episode, in place of all that waits."""
        new = new or (self._begin is not None and self._begin[2])
        self._begin, self._writes, self._snapshot = (kept, entries, new), [], None
        self._size = 0
        self._start(kept)

    def add(self, kept: KeptSession, entries: list[Entry], header: bytes | None) -> None:
        """Add a write. Of several snapshots, the last one is kept."""
        self._snapshot = next((entry for entry in entries if entry.number == SNAPSHOT), self._snapshot)
        others = [entry for entry in entries if entry.number != SNAPSHOT]
        self._writes.append((others, header))
        self._size += sum(entry.size for entry in others)
        self._start(kept)

    async def made(self, timeout_s: float | None = None) -> bool:
        """Wait until all are made, or another server continues the session. Return False if the time is up."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_s)
        return self._task is None

    def cancel(self) -> None:
        """Leave them unmade."""
        if self._task is not None:
            self._task.cancel()

    def _start(self, kept: KeptSession) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._make(kept))

    async def _make(self, kept: KeptSession) -> None:
        pause_s = 0.0
        try:
            while self.count or self._snapshot is not None:
                try:
                    await self._make_next(kept)
                    pause_s = 0.0
                except StoreError:
                    pause_s = min(max(2 * pause_s, 0.02), 1.0)
                    await asyncio.sleep(pause_s)
            logger.warning("the store of durable sessions answers: an episode is in its journal again")
        except Fenced:
            self._fenced()
        except Exception:
            logger.exception("%d writes of an episode are lost", self.count)
        finally:
            self._task = None

    async def _make_next(self, kept: KeptSession) -> None:
        if self._begin is not None:
            begin = self._begin
            began, first, new = begin
            if new:
                await self._store.begin(began, first, new=True)
            await self._store.begin(began, first, new=False)  # a try whose answer was lost may have begun another one
            if self._begin is begin:
                self._begin = None
            return
        writes, snapshot = self._writes, self._snapshot
        batch = writes[:BATCH]
        last = len(batch) == len(writes)
        entries = [*{entry.number: entry for written, _ in batch for entry in written}.values()]
        if last and snapshot is not None:
            entries.append(snapshot)
        header = next((header for _, header in reversed(batch) if header is not None), None)
        await self._store.append(kept.id, kept.fence, entries, header)
        del writes[: len(batch)]  # of the list that a new episode may have replaced
        if writes is self._writes:
            self._size -= sum(entry.size for made, _ in batch for entry in made)
        if last and self._snapshot is snapshot:
            self._snapshot = None
