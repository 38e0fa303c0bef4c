"""The pool of sessions: one dictionary of them, one way to close."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from mcpenv.errors import ConfigurationError
from mcpenv.execution.execution import Execution
from mcpenv.execution.snapshots import Snapshot
from mcpenv.execution.snapshots.store import SnapshotStore
from mcpenv.server.config import MANY_SESSIONS, ServerConfig
from mcpenv.server.metrics.counters import QUARANTINED, REFUSED, SessionObserver
from mcpenv_client.errors import CapacityReached, InvalidMessage, McpenvError, NotSupported, SessionLost, Unauthorized
from mcpenv_client.types.observations import Observation

from .credential import Credential
from .factory import EnvironmentFactory, PendingInstance, close_instance
from .handles import Handles
from .membership import Alone, Membership
from .operations import OPERATIONS
from .session import Origin, Session

logger = logging.getLogger("mcpenv")


class Durability(Protocol):
    """Keeps the sessions that a client can resume, so that another server can continue them."""

    async def begun(self, session: Session, observation: Observation) -> None:
        """Keep an episode that has begun, with the observation that answers it.

        Raises:
            SessionLost: it cannot be kept.
        """
        ...

    async def revive(self, session_id: str, credential: Credential | None) -> Session | None:
        """Continue a kept session here; None if there is none of that id.

        Args:
            credential: of its client; None for an agent that has its handle.

        Raises:
            Unauthorized: it is another client's.
            SessionLost: it cannot be continued.
            CapacityReached: not now.
        """
        ...

    async def leaving(self, session: Session, reason: str) -> None:
        """Put a session away that this server closes, or forget it: no step of it runs any more."""
        ...


DURABLE_GRACE_S = 30.0
"""Seconds for which a kept session stays in memory after its socket is lost, unless `resume_grace_s` is set."""

LINGER_S = 1.0
"""Seconds after an episode's end, or an agent's last call, in which a drain answers its client's last questions."""


class SessionPool:
    """The sessions of a server.

    Attributes:
        actions: the actions that a step may be.
        handles: the addresses of the episodes.
        slots: the capacity of the server.
        counters: what happened in its sessions so far.
        ending: True once sockets close after their step, because the server ends.
        operations: the operation of each frame; extensions add theirs.
        durability: keeps sessions for other servers; None: each ends with this one.
        on_connection_end: called with the id of a session of a handshake connection that the server has ended.
    """

    def __init__(self, source: EnvironmentFactory, config: ServerConfig, membership: Membership | None = None) -> None:
        self._source = source
        self._config = config
        self._membership = Alone(config) if membership is None else membership
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._ending: set[Session] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._opening_socket: dict[str, asyncio.Future[None]] = {}
        self.actions = source.actions
        self.operations = dict(OPERATIONS)
        self.handles = Handles(self._membership.new_id)
        self.slots = self._membership.slots(self._limit, config)
        self.counters = self._membership.counters()
        self.ending = False
        self.durability: Durability | None = None
        self.on_connection_end: Callable[[str], None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve: check the settings, reap idle sessions, and close every session at the end.

        Raises:
            ConfigurationError: more sessions than the environment allows.
        """
        cls = self._source.environment_class
        assert cls is not None
        if self.slots.limit > 1 and not cls.SUPPORTS_CONCURRENT_SESSIONS:
            raise ConfigurationError(
                f"{self.slots.limit} sessions asked for, but {cls.__name__} allows one; "
                "set SUPPORTS_CONCURRENT_SESSIONS = True in the class if its instances do not share state"
            )
        self.actions = self._source.actions
        reaper = asyncio.create_task(self._reap(), name="mcpenv-reaper")
        try:
            yield
        finally:
            self.slots.close()
            self.ending = True
            reaper.cancel()
            self.handles.close()
            opening = list(self._opening.values())
            for task in opening:
                task.cancel()
            if opening:
                await asyncio.wait(opening)
            for session in list(self._sessions.values()):
                self._begin_close(session, "shutdown")
            while self._ending:
                await asyncio.wait(self.closings())
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=self._config.shutdown_timeout_s)

    async def drain(self, *, lingers: bool = False) -> None:
        """Refuse new sessions, and return when the calls in flight, including queued ones, have ended.

        Requests that wait for a session are refused. Sockets close after their step; if ``lingers``, a while later.
        """
        self.slots.close()
        self.ending = True
        for session in self.sessions():
            session.resume()
            # An agent may act in a session whose socket is idle.
            session.dismiss(at_once=not session.execution.busy)
        for execution in [session.execution for session in self._sessions.values()]:
            if execution.busy and not execution.user_code.abandoned:
                await execution.wait_idle()
        if lingers and any(not each.origin.orchestrated and each.idle_s < LINGER_S for each in self.sessions()):
            await asyncio.sleep(LINGER_S)  # FastMCP's client lists tools after the answer of a call
        for session in self.sessions():
            session.dismiss(at_once=True)
            session.execution.subscribers.end()

    def stop_watching(self) -> None:
        """End the streams of those who watch sessions."""
        for session in (*self._sessions.values(), *self._ending):
            session.live.close()

    def in_episodes(self) -> list[Session]:
        """Return the sessions with an episode that runs, or has just ended, so that its client may ask what it was."""
        recent = time.time() - LINGER_S
        return [
            session
            for session in self._sessions.values()
            if session.execution.journal is None  # else another server continues it
            and session.origin.orchestrated
            and session.execution.episode.last_ran_after(recent)
        ]

    def get(self, session_id: str) -> Session:
        """Return the session of that id.

        Raises:
            SessionLost: there is none.
        """
        session = self.seen(session_id)
        session.last_used = time.monotonic()
        return session

    def seen(self, session_id: str) -> Session:
        """Return the session of that id as `get` does. This does not count as use of the session."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost("no such session; it was closed, timed out, or never was")
        return session

    def joinable(self, session_id: str) -> Session:
        """Return the orchestrator's session of that id, if the id is sufficient because the server made it.

        Raises:
            SessionLost: there is none, or it is another kind of session.
        """
        session = self.get(session_id)
        if not session.origin.orchestrated or session.credential is not None:
            return self.get("")  # report ids of other kinds as unknown
        return session

    def peek(self, session_id: str) -> Session | None:
        """Return the session of that id, or None. This does not count as use of the session."""
        return self._sessions.get(session_id)

    def sessions(self) -> list[Session]:
        """Return all sessions, oldest first."""
        return list(self._sessions.values())

    async def end(self, session: Session) -> None:
        """End a session on request: close its socket with a reason, and cancel its operations."""
        session.execution.closing = True  # before the steps are cancelled: they have not failed
        session.evict()
        await self.close(session)
        self._tell_connection(session)

    def find(self, session_id: str) -> Session | None:
        """Return the session of that id if it can continue, else None."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.execution.user_code.abandoned and not session.origin.orchestrated:
            # No reset will come, and its client could do nothing about an error. The next call begins a new session.
            self._begin_close(session)
            return None
        session.last_used = time.monotonic()
        return session

    async def open(self, origin: Origin, credential: Credential | None = None) -> Session:
        """Return a new session under a new id, or under the one of a credential that its client does not have here.

        Raises:
            CapacityReached: all slots are in use, or the server is shutting down.
            FactoryError, ExecutionError: the environment could not be made or reset.
        """
        return await self._open(credential.session_id if credential else self._membership.new_id(), origin, credential)

    async def get_or_open(self, session_id: str, origin: Origin) -> Session:
        """Return the session of that id, and create it if needed. Concurrent callers get the same one.

        Raises:
            as `open`.
        """
        session = self.find(session_id)
        if session is not None:
            return session
        opening = self._opening.get(session_id)
        if opening is None:
            opening = asyncio.create_task(self._open(session_id, origin))
            self._opening[session_id] = opening
            opening.add_done_callback(lambda task: self._opening.pop(session_id, None))
            opening.add_done_callback(_retrieved)
        return await asyncio.shield(opening)

    async def close(self, session: Session, reason: str = "closed") -> None:
        """Close a session once and free its slot. Return when it is closed, also if another caller began to close it.

        Exceptions of the author's close are logged. Cancelling the caller does not stop the close.

        Args:
            reason: for the record of an episode that has not ended.
        """
        await asyncio.shield(self._begin_close(session, reason))

    def _begin_close(self, session: Session, reason: str = "closed") -> asyncio.Task[None]:
        """Begin to close a session. Its id is free at once, its slot when the session is closed."""
        if session.closing is None:
            if session.grace is not None:
                session.grace.cancel()
            del self._sessions[session.id]
            self._ending.add(session)
            session.closing = asyncio.ensure_future(self._close(session, reason))
        return session.closing

    async def _close(self, session: Session, reason: str) -> None:
        if session.replacing is not None:
            await asyncio.wait({session.replacing})
        session.execution.closing = True  # before the steps are cancelled: they have not failed
        running = session.replies.cancel_all()
        if running:
            await asyncio.wait(running)
        session.execution.stop()
        session.resume()
        session.snapshots.close()
        if session.has_forks:
            self._end_unjoined(session)
        self.retire_handle(session)
        try:
            if self.durability is not None:
                await self.durability.leaving(session, reason)
            await close_instance(session.execution, reason)
            if session.execution.episode.id is not None:
                await self.wait_recorded(session.execution, session.execution.episode.id)
        finally:
            session.live.close()
            self._ending.discard(session)
            if session.credential is not None:
                self._membership.release_id(session.id)
            self.slots.free(session.origin.orchestrated)

    async def open_socket(self, credential: Credential | None, *, resume: bool) -> Session:
        """Return the session for a socket: a new one, or the one that its client lost.

        Args:
            credential: the client's credential; None if it will not resume.
            resume: True if the client had a session, so that a new one must not be made.

        Raises:
            SessionLost: there is nothing to resume.
            Unauthorized: the id belongs to another client.
            CapacityReached, FactoryError, ExecutionError: as `open`.
        """
        if credential is None:
            if resume:
                raise InvalidMessage("to resume, send the session's id and token")
            return await self._open(self._membership.new_id(), Origin.SOCKET)
        while (opening := self._opening_socket.get(credential.session_id)) is not None:
            # The client has reconnected before its session was made, and gets that session.
            await asyncio.wait({opening})
        session = self._sessions.get(credential.session_id)
        if session is None and resume:
            session = await self.revived(credential.session_id, credential)
        if session is not None:
            mine = session.credential
            if mine is None or not hmac.compare_digest(mine.digest, credential.digest):
                raise Unauthorized("this session cannot be resumed with that token")
            return session
        if resume:
            raise SessionLost("there is no session to resume: it was closed, or its grace is over")
        opened = self._opening_socket[credential.session_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._open(credential.session_id, Origin.SOCKET, credential)
        finally:
            del self._opening_socket[credential.session_id]
            opened.set_result(None)

    async def revived(self, session_id: str, credential: Credential | None) -> Session | None:
        """Return a session that is continued here, or is already; None if no server has kept it.

        Raises:
            as `Durability.revive`.
        """
        while (opening := self._opening_socket.get(session_id)) is not None:
            await asyncio.wait({opening})
        session = self._sessions.get(session_id)
        if session is not None or self.durability is None:
            return session
        opened = self._opening_socket[session_id] = asyncio.get_running_loop().create_future()
        try:
            return await self.durability.revive(session_id, credential)
        finally:
            del self._opening_socket[session_id]
            opened.set_result(None)

    async def fork(
        self, parent: Session, snapshot: Snapshot, credential: Credential | None, timeout_s: float | None
    ) -> Session:
        """Return a new session that continues a snapshot. No socket holds it yet; one may join it by its id.

        Until a socket joins, it ends with its parent session.

        Args:
            credential: the credential that the client chose for it; None if it will not resume.
            timeout_s: maximum seconds of the restore.

        Raises:
            NotSupported: the server allows only one session, or the new instance cannot restore the snapshot.
            InvalidMessage: the id is in use.
            CapacityReached, FactoryError, ExecutionError: as `open`.
        """
        if self.slots.limit == 1:
            raise NotSupported(
                "a fork is a session of its own, and this server has one at a time; set SUPPORTS_CONCURRENT_SESSIONS "
                "= True in the environment's class, and allow more"
            )
        session_id = self._membership.new_id() if credential is None else credential.session_id
        if session_id in self._sessions or session_id in self._opening_socket:
            raise InvalidMessage("there is a session of that id already")
        opened = self._opening_socket[session_id] = asyncio.get_running_loop().create_future()
        try:
            session = await self._fork_opened(session_id, credential)
        finally:
            del self._opening_socket[session_id]
            opened.set_result(None)
        session.held, session.forked_by, parent.has_forks = False, parent.id, True
        session.base_url = parent.base_url
        session.snapshots = parent.snapshots.forked()
        try:
            await session.restore(snapshot, timeout_s)
            if parent.closing is not None:
                raise SessionLost("the session was closed")  # the client will not get the fork's id
        except BaseException:
            await self.close(session)
            raise
        return session

    async def _fork_opened(self, session_id: str, credential: Credential | None) -> Session:
        if credential is None:
            return await self._open(session_id, Origin.SOCKET)
        if not await self._membership.reserve(session_id):
            raise InvalidMessage("there is a session of that id already")
        try:
            return await self._open(session_id, Origin.SOCKET, credential)
        finally:
            self._membership.release_id(session_id)  # the session, if there is one, holds the slot

    def _end_unjoined(self, parent: Session) -> None:
        """End the forks of ``parent`` that no socket has joined. Only its client knew their ids."""
        for session in list(self._sessions.values()):
            if session.forked_by == parent.id and not session.held and session.grace is None:
                self._begin_close(session)

    def new_snapshots(self) -> SnapshotStore:
        """Return the snapshot store of one session."""
        return SnapshotStore(self._config.max_snapshots, self._config.max_snapshot_bytes)

    async def release(self, session: Session, *, lost: bool) -> None:
        """Release a session whose socket has closed.

        Args:
            lost: True if the socket was lost. Then a client with a credential may resume within `resume_grace_s`,
                unless it has already.
        """
        if session.origin is Origin.HTTP and session.closing is None:
            return  # it is older than the socket, and can be used in other ways
        grace_s = self._config.resume_grace_s or (0.0 if self.durability is None else DURABLE_GRACE_S)
        if not lost or session.credential is None or grace_s <= 0 or self.ending or session.closing is not None:
            await self.close(session, "disconnected" if lost else "shutdown" if self.ending else "closed")
        elif not session.held:
            session.grace = asyncio.get_running_loop().call_later(grace_s, self.close_soon, session.id, "disconnected")

    def retire_handle(self, session: Session) -> None:
        """Retire the handle of the session's episode."""
        handle, session.handle = session.handle, None
        if handle is not None:
            self.handles.retire(handle)

    def closings(self, session_id: str | None = None) -> list[asyncio.Task[None]]:
        """Return the tasks that close sessions, or those of one id."""
        ending = (session for session in self._ending if session_id in (None, session.id))
        return [session.closing for session in ending if session.closing is not None]

    def close_soon(self, session_id: str, reason: str = "closed") -> None:
        """Close the session of that id without waiting, also if it is still being made."""
        opening = self._opening.get(session_id)
        if opening is not None:
            opening.add_done_callback(lambda task: self.close_soon(session_id, reason))
        session = self._sessions.get(session_id)
        if session is not None:
            self._begin_close(session, reason)

    async def wait_recorded(self, execution: Execution, episode_id: str) -> None:
        """Return when an ended episode is on disk, where episodes are recorded, and is counted."""
        sink, recorder = execution.sink, self._source.recorder
        if sink is not None:
            await sink.written(episode_id)
        if recorder is not None:
            counts = recorder.counts
            self.counters.recorded(counts.written, counts.lost)

    async def replace(self, session: Session) -> None:
        """Return a new instance for a session whose own runs abandoned code. The old one is left to its thread.

        Cancelling does not stop this. A later caller waits for the same instance.

        Raises:
            as `open`.
        """
        if session.replacing is None:
            if self.slots.shut:
                raise self.slots.refusal(self.slots.shut)
            session.replacing = asyncio.ensure_future(self._replace(session))
            session.replacing.add_done_callback(_retrieved)
        await asyncio.shield(session.replacing)

    async def _replace(self, session: Session) -> None:
        try:
            execution = await self._made(self._make(session.origin))
        finally:
            session.replacing = None
        self.retire_handle(session)  # the old instance provides its listing before it is closed
        execution.observer, execution.journal = session.execution.observer, session.execution.journal
        left = session.execution
        session.use(execution)
        await close_instance(left)

    async def _open(self, session_id: str, origin: Origin, credential: Credential | None = None) -> Session:
        try:
            await self.slots.take(self.make_room, origin.orchestrated)
        except CapacityReached:
            self.counters.numbers[REFUSED] += 1
            raise
        making = self._make(origin)
        try:
            execution = await self._made(making)
        except asyncio.CancelledError:
            abandoned = asyncio.ensure_future(self._abandon(making, origin))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise
        except BaseException:
            self.slots.free(origin.orchestrated)
            raise
        session = Session(self, session_id, origin, execution, credential)
        execution.observer = SessionObserver(self.counters, session.label, session.live)
        self.counters.opened(origin.value)
        self._sessions[session_id] = session
        if credential is not None:
            self._membership.hold(session_id)
        return session

    async def _abandon(self, making: PendingInstance, origin: Origin) -> None:
        """Let an abandoned construction finish. It keeps its slot until its instance is closed."""
        try:
            await close_instance(await making.result())
        except McpenvError:
            logger.warning("an environment whose client left could not be made")
        finally:
            self.slots.free(origin.orchestrated)

    def _make(self, origin: Origin) -> PendingInstance:
        return self._source.make(orchestrated=origin.orchestrated, on_abandoned=self._quarantine)

    async def _made(self, making: PendingInstance) -> Execution:
        execution = await making.result()
        execution.user_code.on_abandoned = self._quarantine
        return execution

    def _quarantine(self) -> Callable[[], None]:
        self.counters.numbers[QUARANTINED] += 1
        return self.slots.quarantine()

    async def make_room(self, orchestrated: bool) -> None:
        """Close sessions until a slot is free, if possible, for a session with or without an orchestrator."""
        while self.slots.full and (victim := self.who_gives_way(orchestrated)) is not None:
            await self.close(victim)

    def who_gives_way(self, orchestrated: bool) -> Session | None:
        """Return the session to close for a new one, or None: an unused one, or with one slot an idle agent's.

        A session is unused if its client never came back after ``/reset``, nor did an agent.

        Args:
            orchestrated: True if the new session has an orchestrator.
        """
        for session in sorted(self._sessions.values(), key=lambda s: s.last_used):
            if session.held or session.execution.busy:
                continue
            met = session.claimed or (session.handle is not None and session.handle.used)
            if session.origin is Origin.HTTP and not met:
                return session
            if self.slots.limit == 1 and orchestrated and not session.origin.orchestrated:
                return session
        return None

    def _limit(self) -> int:
        if self._config.max_concurrent_envs is not None:
            return self._config.max_concurrent_envs
        cls = self._source.environment_class
        return MANY_SESSIONS if cls is not None and cls.SUPPORTS_CONCURRENT_SESSIONS else 1

    async def _reap(self) -> None:
        """Close sessions that have been idle too long, never one with a call in flight."""
        while True:
            await asyncio.sleep(min(self._config.session_timeout_s / 4, 30.0))
            self._end_idle()

    def _end_idle(self) -> None:
        # No await between the check and the close, so that no call can begin in between. In a function of its own, so
        # that the sleeping reaper has no reference to a session.
        for session in list(self._sessions.values()):
            if session.idle_s >= self._config.session_timeout_s:
                logger.info("session ends after %.0f s without use", session.idle_s)
                self._begin_close(session, "idle")
                self._tell_connection(session)

    def _tell_connection(self, session: Session) -> None:
        """Close the connection of an ended session. Its client's next call would begin in a new world unnoticed."""
        if session.origin is Origin.CONNECTION and self.on_connection_end is not None:
            self.on_connection_end(session.id)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception so that asyncio does not report it. All waiting callers may be cancelled."""
    if not task.cancelled():
        task.exception()
