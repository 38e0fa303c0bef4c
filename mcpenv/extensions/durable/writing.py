"""How the entries of a session reach its store: with patience, and behind its answers if the settings say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mcpenv_client.errors import SessionLost
from mcpenv_client.wire.protocol import MAX_BEHIND

from .store import GO_ON, Entry, Fenced, KeptSession, Settings, Store, StoreError
from .unwritten import Unwritten

logger = logging.getLogger("mcpenv")

CONTINUED = "another server continues this episode, or it was discarded; reconnect to go on there"


class SessionWriter:
    """Writes the entries of one session.

    Args:
        store: where they are written.
        kept: the session as the store has it.
        give_up: called once, with the reason, when this server can no longer continue the session.

    Attributes:
        kept: the session as it was written last.
        lost: why this server does not continue it; None while it does.
    """

    def __init__(self, store: Store, settings: Settings, kept: KeptSession, give_up: Callable[[str], None]) -> None:
        self.kept = kept
        self.lost: str | None = None
        self._store = store
        self._settings = settings
        self._give_up = give_up
        self._waiting: list[tuple[list[Entry], bytes | None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._unwritten = Unwritten(store, lambda: self._lose(CONTINUED))

    async def begin(self, kept: KeptSession, entries: list[Entry], *, new: bool) -> None:
        """Write the beginning of an episode, later if the store cannot be reached and the operator chose that.

        Raises:
            SessionLost: it cannot be written.
        """
        self.kept = kept
        await asyncio.shield(asyncio.ensure_future(self._begun(entries, new=new)))

    async def write(self, entries: list[Entry], header: bytes | None = None, *, behind: bool = False) -> None:
        """Write entries.

        Args:
            behind: return before the store has them, unless too many wait for it.

        Raises:
            SessionLost: they cannot be written.
        """
        if not behind or self._unwritten.waits:
            await self.flush()
            # What is begun is completed also if the caller is cancelled.
            await asyncio.shield(asyncio.ensure_future(self._append(entries, header)))
            return
        if len(self._waiting) >= MAX_BEHIND:
            await self.flush()
        self._waiting.append((entries, header))
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush())

    async def announce(self, entry: Entry) -> None:
        """Write what must be in the store before something happens, whatever the operator chose.

        Raises:
            SessionLost: it cannot be written.
        """
        await self._patiently(lambda: self._store.append(self.kept.id, self.kept.fence, [entry], None), must=True)

    async def note(self, entry: Entry) -> None:
        """Write what no step waits for, whenever the store answers.

        Raises:
            SessionLost: another server continues the session.
        """
        while True:
            await self.caught_up()
            await self.flush()
            try:
                await self._store.append(self.kept.id, self.kept.fence, [entry], None)
            except Fenced:
                raise self._lose(CONTINUED) from None
            except StoreError:
                await asyncio.sleep(1.0)
            else:
                return

    def check(self) -> None:
        """Raise an error if this server does not continue the session.

        Raises:
            SessionLost: it does not.
        """
        if self.lost is not None:
            raise SessionLost(self.lost)

    async def flush(self) -> None:
        """Return when everything is written.

        Raises:
            SessionLost: it cannot be written.
        """
        while self._flushing is not None:
            await asyncio.wait({self._flushing})
        self.check()

    @property
    def unwritten(self) -> int:
        """The number of writes that the store does not have yet."""
        return len(self._waiting) + self._unwritten.count

    @property
    def apart(self) -> bool:
        """True while the episode goes on without a store that cannot be reached."""
        return self._unwritten.waits

    async def caught_up(self, timeout_s: float | None = None) -> bool:
        """Wait for a store without which the episode goes on. Return False if the time is up, and it did not answer."""
        return await self._unwritten.made(timeout_s)

    def abandon(self) -> None:
        """Leave unwritten what the store has not got while it could not be reached."""
        self._unwritten.cancel()

    async def drop(self) -> None:
        """Leave unwritten all that the store has not got: its session is closed."""
        self.abandon()
        if (flushing := self._flushing) is not None:
            flushing.cancel()
            await asyncio.wait({flushing})

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch = [*self._waiting]
                header = next((header for _, header in reversed(batch) if header is not None), None)
                # Of several snapshots, the last one.
                entries = [*{entry.number: entry for written, _ in batch for entry in written}.values()]
                await self._append(entries, header)
                del self._waiting[: len(batch)]
        except SessionLost as lost:
            logger.warning("a session could not be written behind: %s", lost)
        finally:
            self._flushing = None

    async def _begun(self, entries: list[Entry], *, new: bool) -> None:
        """Write the beginning of an episode, later if the store cannot be reached and the operator chose that."""
        if not self._unwritten.waits:
            try:
                await self._patiently(lambda: self._store.begin(self.kept, entries, new=new))
                return
            except StoreError as error:
                self._tell_unreachable(error)
        self._unwritten.begin(self.kept, entries, new=new)

    async def _append(self, entries: list[Entry], header: bytes | None) -> None:
        """Write entries, later if the store cannot be reached and the operator chose that."""
        if not self._unwritten.waits:
            try:
                await self._patiently(lambda: self._store.append(self.kept.id, self.kept.fence, entries, header))
                return
            except StoreError as error:
                self._tell_unreachable(error)
        if self._unwritten.full:
            await self.caught_up()
        self._unwritten.add(self.kept, entries, header)

    def _tell_unreachable(self, error: StoreError) -> None:
        logger.warning("the store of durable sessions: %s; an episode goes on without its journal", error)

    async def _patiently(self, write: Callable[[], Awaitable[None]], *, must: bool = False) -> None:
        """Write, and try again while the store does not answer.

        Args:
            must: do so also if the operator chose to go on without the store.

        Raises:
            StoreError: the operator chose that.
            SessionLost: the patience is over, or another server continues the session.
        """
        loop = asyncio.get_running_loop()
        until, pause_s, told = loop.time() + self._settings.patience_s, 0.02, False
        while True:
            try:
                await write()
            except Fenced:
                raise self._lose(CONTINUED) from None
            except StoreError as error:
                if self._settings.unreachable == GO_ON:
                    if not must:
                        raise
                elif loop.time() >= until:
                    why = f"the store of durable sessions did not take a step for {self._settings.patience_s:g} s"
                    raise self._lose(f"{why}; reconnect to go on from the last step that it has") from error
                if not told:
                    logger.warning("the store of durable sessions: %s; steps wait for it", error)
                    told = True
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _lose(self, why: str) -> SessionLost:
        if self.lost is None:
            self.lost = why
            self._give_up(why)
        return SessionLost(why)
