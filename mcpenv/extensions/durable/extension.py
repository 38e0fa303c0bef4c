"""The extension of a server whose sessions outlive it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mcpenv.errors import ConfigurationError
from mcpenv.server.app import EnvServer
from mcpenv.server.extension import Extension
from mcpenv.server.security.host_check import is_loopback
from mcpenv.server.serve import address_of
from mcpenv.server.sessions.credential import Credential
from mcpenv.server.sessions.idempotency import REQUEST
from mcpenv.server.sessions.operations import Fork, Forked, Operation, Reset, Restore
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import CapacityReached, SessionLost, Unauthorized
from mcpenv_client.types.observations import Observation
from mcpenv_client.wire.protocol import FrameType

from .agents import AgentsElsewhere
from .bounds import Bounds
from .cleaning import Cleaner
from .journal import EpisodeJournal, environment_of
from .rerun import rerun
from .snapshots import way_of
from .store import (
    Claimant,
    KeptSession,
    OtherEnvironment,
    Owned,
    Settings,
    Store,
    StoreError,
    open_with_snapshots,
    shown,
)

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

LEAVES_S = 1.0
"""Maximum seconds for which the end of a session waits for the store."""

LOOK_S = 0.1
"""Seconds between two looks at a session that another server is to put away."""


class Durable(Extension):
    """Keeps each session that its client can resume in a store, and continues those of other servers.

    A session is kept from its first reset on. Its owner is the server that has it, by a lease that the server renews
    for all of its sessions together. Each owner has a larger fencing number, which every write names.
    """

    def __init__(self, server: EnvServer) -> None:
        if server.config.durable is None:
            raise ConfigurationError("durable sessions need --durable, with a folder or the URL of a store")
        self._server = server
        self._pool = server.pool
        self._settings = Settings.parse(server.config.durable)
        self._owner = f"{socket.gethostname()}-{secrets.token_hex(6)}"
        self._beating: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reviving: dict[str, asyncio.Task[Session | None]] = {}
        self._closing: set[str] = set()
        self._cannot_be_saved: set[str] = set()
        self._store: Store | None = None
        self._reached_at: tuple[str, int] | None = None
        self.agent_middleware = [partial(AgentsElsewhere, durable=self, max_body_bytes=server.config.max_message_bytes)]

    def has(self, handle: str) -> bool:
        """Return True if this server has a handle's episode."""
        found = self._pool.handles.find(handle)
        return found is not None and found.execution is not None

    @property
    def store(self) -> Store:
        """The store, while the server runs."""
        assert self._store is not None
        return self._store

    async def start(self) -> None:
        """Open the store, and begin to renew the lease."""
        self._store = open_with_snapshots(self._settings)
        try:
            await self._store.beat(self._owner, self._settings.lease_s)
        except StoreError as error:
            raise ConfigurationError(f"--durable {shown(self._settings.place)}: {error}") from error
        self._cleaner = Cleaner(self._store, self._settings, self._server, self._claimant, self._is_here)
        self._pool.durability = self
        operations, bounds = self._pool.operations, Bounds(self._settings, self._store)
        if FrameType.BRANCH in operations:
            operations[FrameType.BRANCH] = bounds.around(self._begun_anew(operations[FrameType.BRANCH]))
        for operation in (Reset, Restore):
            operations[operation.frame] = bounds.around(operations[operation.frame])
        operations[Fork.frame] = self._forked_once(bounds)
        self._beating = asyncio.create_task(self._beat(), name="mcpenv-durable")
        logger.info("episodes are kept in %s; their owner is %s", shown(self._settings.place), self._owner)

    async def stop(self) -> None:
        """Put every session away, so that other servers continue them at once, and close the store."""
        for reviving in self._reviving.values():
            reviving.cancel()
        kept = [session for session in self._pool.sessions() if session.execution.journal is not None]
        await asyncio.gather(*(self._pool.close(session, "shutdown") for session in kept), return_exceptions=True)
        if tasks := {*self._tasks, *self._pool.closings()}:
            # A tool that hangs is not waited for.
            await asyncio.wait(tasks, timeout=self._server.config.shutdown_timeout_s)
        if self._beating is not None:
            self._beating.cancel()
        try:
            await self.store.close()
        except StoreError as error:
            logger.warning("the store of durable sessions: %s; its lease runs out in a while", error)

    # -- what the pool asks

    async def begun(self, session: Session, observation: Observation) -> None:
        """Write an episode that has begun, if its client can resume."""
        if session.credential is None or session.handle is None or way_of(session.execution) == "restart":
            return
        journal, new = session.execution.journal, False
        if not isinstance(journal, EpisodeJournal):
            owner, address, environment = self._claimant(session.base_url)
            kept = KeptSession(session.id, session.credential.digest, environment, "", address, b"", owner=owner)
            journal, new = self._journal(session, kept), True
        # The request for a fork is one of the session that was forked.
        request = None if new and session.forked_by is not None else REQUEST.get()
        await journal.begin(session.execution, session.handle.value, observation, request, new=new)
        session.execution.journal = journal

    async def revive(self, session_id: str, credential: Credential | None) -> Session | None:
        """Continue a kept session here. If its client leaves meanwhile, it finds the session when it comes back."""
        await self._cleaner.let_go(session_id)
        while others := [*self._pool.closings(session_id), *filter(None, [self._reviving.get(session_id)])]:
            await asyncio.wait(others)
        session = self._pool.peek(session_id)
        if session is not None:
            return session
        reviving = self._begin(self._revived(session_id, None if credential is None else credential.digest))
        self._reviving[session_id] = reviving
        reviving.add_done_callback(lambda _: self._reviving.pop(session_id))
        return await asyncio.shield(reviving)

    async def _revived(self, session_id: str, digest: str | None) -> Session | None:
        kept = await self._claimed(session_id, digest)
        if kept is None:
            return None
        try:
            entries = await self.store.entries(session_id)
            session = await self._pool.open(Origin.SOCKET, Credential(session_id, kept.digest))
        except BaseException as error:
            await self._let_go(kept)
            if isinstance(error, StoreError):
                raise _not_now(error) from error
            raise
        session.held, session.base_url = False, kept.address
        try:
            unknown = await rerun(session, kept, entries)
            session.execution.journal = journal = self._journal(session, kept)
            if unknown is not None:
                await journal.answer_unknown(session, unknown)
            if kept.over:
                journal.note_recorded()
        except BaseException:
            session.execution.episode.handed_over = True
            await self._pool.close(session, "moved")
            await self._let_go(kept)
            raise
        session.handle = self._pool.handles.mint(session.execution, kept.handle)
        session.last_used = time.monotonic()
        logger.info("session %s continues here, after %d steps", session.label, kept.steps)
        return session

    def _is_here(self, session_id: str) -> bool:
        """Return True if this server has a session, continues it, or puts it away."""
        here = session_id in self._reviving or session_id in self._closing
        return here or self._pool.peek(session_id) is not None or bool(self._pool.closings(session_id))

    async def leaving(self, session: Session, reason: str) -> None:
        """Put a session away, or forget it if its client has closed it."""
        journal = session.execution.journal
        if not isinstance(journal, EpisodeJournal):
            return
        self._closing.add(session.id)
        closed = reason == "closed" and not self._pool.ending
        writer, note = journal.writer, journal.record_note
        try:
            if closed:
                await note.drop()
                await writer.drop()
            else:
                # Without its store an episode waits for it here, until the server ends or another one has the session.
                if not await writer.caught_up(self._settings.patience_s if self._pool.ending else None):
                    writer.abandon()
                    logger.warning("session %s: %d writes are lost", session.label, writer.unwritten)
                await writer.flush()
                await note.over(wait=not session.execution.busy)
        except SessionLost as lost:
            logger.warning("session %s: %s", session.label, lost)
        except BaseException:
            self._closing.discard(session.id)
            raise
        session.execution.episode.handed_over |= not closed  # then its record is written where it ends
        leaving = self._begin(self._leave(session.id, writer.kept.fence, session.label, closed=closed))
        await asyncio.wait({leaving}, timeout=LEAVES_S)

    async def _leave(self, session_id: str, fence: int, label: str, *, closed: bool) -> None:
        """Delete a session in the store that was closed, or release it; if need be once the store can be reached."""
        leave, told = self.store.discard if closed else self.store.release, False
        try:
            while True:
                try:
                    await leave(session_id, fence)
                    return
                except StoreError as error:
                    if not told:
                        logger.warning("session %s is still in the store: %s", label, error)
                        told = True
                    if self._pool.ending and not closed:
                        return  # its lease runs out
                await asyncio.sleep(LOOK_S)
        finally:
            self._closing.discard(session_id)

    async def elsewhere(self, handle: str) -> str | None:
        """Return the address of the server that has a handle's episode and lives; None if there is none."""
        kept = await self.store.of_handle(handle)
        return kept.address if kept is not None and kept.alive and kept.owner != self._owner else None

    async def take_over(self, handle: str) -> None:
        """Continue a handle's episode here, if it is kept."""
        kept = await self.store.of_handle(handle)
        if kept is not None:
            await self._pool.revived(kept.id, None)

    def reached_at(self, host: str, port: int) -> None:
        """Note an address of this machine at which agents' requests come."""
        if self._reached_at is None or is_loopback(self._reached_at[0]):
            self._reached_at = host, port

    # -- inside

    def _claimant(self, base_url: str = "") -> Claimant:
        """Return this server as one that asks for a session, or has it.

        Args:
            base_url: the address at which the session's orchestrator sees it.
        """
        address = self._settings.address
        if address is None and self._reached_at is not None:
            seen = urlsplit(base_url).hostname
            # A proxy on this machine may be what other machines reach.
            if seen is None or is_loopback(seen) or not is_loopback(self._reached_at[0]):
                address = f"http://{address_of(*self._reached_at)}"
        cls = self._server.source.environment_class
        assert cls is not None
        return Claimant(self._owner, address or base_url, environment_of(cls))

    async def _claimed(self, session_id: str, digest: str | None) -> KeptSession | None:
        until = asyncio.get_running_loop().time() + self._settings.lease_s
        while True:
            try:
                return await self.store.claim(session_id, self._claimant(), digest)
            except OtherEnvironment as error:
                if error.kept.alive:
                    raise CapacityReached(
                        f"another server has this session, one of {error.kept.environment}; try again there"
                    ) from None
                raise SessionLost(
                    f"the episode cannot be continued here: it is one of {error.kept.environment}, and this server has "
                    f"{self._claimant().environment}"
                ) from None
            except Owned:
                if asyncio.get_running_loop().time() > until:
                    raise CapacityReached("another server has this session, and is busy with it; try again") from None
            except PermissionError:
                raise Unauthorized("this session cannot be resumed with that token") from None
            except StoreError as error:
                raise _not_now(error) from error
            await asyncio.sleep(LOOK_S)

    async def _let_go(self, kept: KeptSession | None) -> None:
        if kept is None:
            return
        try:
            await self.store.release(kept.id, kept.fence)
        except StoreError as error:
            logger.warning("the store of durable sessions: %s", error)

    async def _beat(self) -> None:
        """Renew the lease, put away what other servers ask for, and delete what nobody continues."""
        period_s = min(self._settings.lease_s / 4, 1.0)
        cleaned, cleaning = time.monotonic(), self._begin(self._cleaner.clean())
        while True:
            await asyncio.sleep(period_s)
            try:
                for session_id in await self.store.beat(self._owner, self._settings.lease_s):
                    session = self._pool.peek(session_id)
                    if session is not None and _goes_on(session):
                        self._begin(self._put_away(session))
                    elif not (self._is_here(session_id) or self._cleaner.holds(session_id)):
                        # It was not released when it left: its client was gone then, or the store.
                        await self._let_go(await self.store.claim(session_id, self._claimant(), None))
                for session in self._pool.sessions():
                    if self._idles(session):
                        self._begin(self._put_away(session, "this session is put away until it is used"))
                if cleaning.done() and time.monotonic() - cleaned > self._settings.lease_s:
                    cleaned, cleaning = time.monotonic(), self._begin(self._cleaner.clean())
            except Owned:
                logger.warning("the lease of this server has run out, and others continue its sessions")
            except StoreError as error:
                logger.warning("the store of durable sessions: %s", error)

    def _idles(self, session: Session) -> bool:
        execution = session.execution
        if not _goes_on(session) or execution.busy or session.live.watched or len(execution.episode.watchers):
            return False
        return time.monotonic() - max(session.last_used, execution.last_active) >= self._settings.idle_s

    async def _put_away(self, session: Session, why: str = "another server continues this session") -> None:
        """Put a session away after its step in progress, which is answered where the session continues."""
        if session.id in self._closing:
            return
        self._closing.add(session.id)
        session.evict(why)
        await session.execution.wait_idle()
        await self._pool.close(session, "moved")

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begun_anew(self, operation: type[Operation]) -> type[Operation]:
        """Return an operation that begins an episode and plays steps of it, and is written once they are played."""
        durable = self

        class BegunAnew(operation):  # type: ignore[valid-type,misc]
            __slots__ = ()

            async def run(self, session: Session) -> Any:
                observation = await operation.run(self, session)
                await durable.begun(session, observation)
                return observation

        return BegunAnew

    def _forked_once(self, bounds: Bounds) -> type[Operation]:
        """Return the operation of a fork that finds the session which the same request opened at another server."""
        durable = self

        class ForkedOnce(Fork):
            __slots__ = ()

            async def run(self, session: Session) -> Forked:
                if self.credential is not None and durable._pool.peek(self.credential.session_id) is None:
                    forked = await durable._pool.revived(self.credential.session_id, self.credential)
                    if forked is not None:
                        if forked.credential is None or forked.credential.digest != self.credential.digest:
                            raise Unauthorized("this session cannot be joined with that token")
                        return Forked(forked.id, forked.execution.episode.id, forked.mcp_url)
                async with bounds.room(is_kept=self.credential is not None and way_of(session.execution) != "restart"):
                    return await Fork.run(self, session)

        return ForkedOnce

    def _journal(self, session: Session, kept: KeptSession) -> EpisodeJournal:
        def give_up(why: str) -> None:
            logger.warning("session %s ends here: %s", session.label, why)
            session.evict(why)
            self._begin(self._pool.close(session, "moved"))

        return EpisodeJournal(self.store, self._settings, session.execution, kept, give_up, self._cannot_be_saved)


def _not_now(error: StoreError) -> CapacityReached:
    return CapacityReached(f"the store of durable sessions does not answer: {error}; try again")


def _goes_on(session: Session) -> bool:
    """Return True if another server can continue a session."""
    journal = session.execution.journal
    return isinstance(journal, EpisodeJournal) and journal.goes_on and not journal.writer.apart
