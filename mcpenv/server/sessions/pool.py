"""The pool of sessions: one dictionary of them, one way to close."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv.execution.execution import Execution
from mcpenv.execution.snapshots import Snapshot
from mcpenv.execution.snapshots.store import SnapshotStore
from mcpenv.server.config import MANY_SESSIONS, ServerConfig
from mcpenv_client.errors import InvalidMessage, McpenvError, NotSupported, SessionLost, Unauthorized

from .credential import Credential
from .factory import EnvironmentSource, Making, close_instance
from .handles import Handles
from .membership import Alone, Membership
from .session import Origin, Session

logger = logging.getLogger("mcpenv")


class SessionPool:
    """The sessions of a server.

    Attributes:
        actions: what a step may be.
        handles: the addresses of the episodes.
        slots: how many sessions there may be.
        on_connection_end: told the id of a session of a handshake connection that was ended here, not by its client.
    """

    def __init__(self, source: EnvironmentSource, config: ServerConfig, membership: Membership | None = None) -> None:
        self._source = source
        self._config = config
        self._membership = Alone(config) if membership is None else membership
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._ending: set[Session] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._opening_socket: dict[str, asyncio.Future[None]] = {}
        self.actions = source.actions
        self.handles = Handles(self._membership.new_id)
        self.slots = self._membership.slots(self._limit, config)
        self.on_connection_end: Callable[[str], None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any session has a call under way."""
        return any(session.execution.busy for session in self._sessions.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve: check the settings, reap idle sessions, and close every session in the end.

        Raises:
            ConfigurationError: more sessions than the environment allows.
        """
        cls = self._source.environment_class
        assert cls is not None
        if self.slots.limit < 1:
            raise ConfigurationError(f"max sessions is {self.slots.limit}; at least 1 is needed")
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
                await asyncio.wait([session.closing for session in self._ending if session.closing is not None])
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=self._config.shutdown_timeout_s)

    async def drain(self) -> None:
        """Take nothing new; return when the calls have ended that are under way or wait for their turn now.

        Who waits for a session is refused, and sockets end after their step.
        """
        self.slots.close()
        for session in self.sessions():
            # An agent may be at work in a session whose socket is idle.
            session.dismiss(at_once=not session.execution.busy)
        for execution in [session.execution for session in self._sessions.values()]:
            if execution.busy and not execution.user_code.stuck:
                await execution.wait_idle()
        for session in self.sessions():
            session.dismiss(at_once=True)
            session.execution.changes.end()

    def get(self, session_id: str) -> Session:
        """The session of that id.

        Raises:
            SessionLost: there is none (any more).
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionLost("no such session; it was closed, timed out, or never was")
        session.last_used = time.monotonic()
        return session

    def joinable(self, session_id: str) -> Session:
        """The orchestrator's session of that id, where knowing the id is enough: the server made it up.

        Raises:
            SessionLost: there is none (any more), or it is not such a session.
        """
        session = self.get(session_id)
        if not session.origin.orchestrated or session.credential is not None:
            return self.get("")  # that another kind of that id exists is nobody's business
        return session

    def peek(self, session_id: str) -> Session | None:
        """The session of that id, if there is one; looking at it is no use of it."""
        return self._sessions.get(session_id)

    def sessions(self) -> list[Session]:
        """All sessions, oldest first."""
        return list(self._sessions.values())

    async def end(self, session: Session) -> None:
        """End a session on somebody's word: its socket is told, what it does is cancelled."""
        session.evict()
        await self.close(session)
        self._tell_connection(session)

    def find(self, session_id: str) -> Session | None:
        """The session of that id, if there is one that can go on."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.execution.user_code.stuck and not session.origin.orchestrated:
            # Nobody will reset it, and nothing said to its client would help: the next call begins anew.
            self._begin_close(session)
            return None
        session.last_used = time.monotonic()
        return session

    async def open(self, origin: Origin) -> Session:
        """A new session under a new id.

        Raises:
            CapacityReached: every slot is taken, or the server is about to end.
            FactoryError, ExecutionError: the environment could not be made or made ready.
        """
        return await self._open(self._membership.new_id(), origin)

    async def get_or_open(self, session_id: str, origin: Origin) -> Session:
        """The session of that id, made now if there is none; callers that come together get the same one.

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
        """Close a session once and free its slot; return when it is closed, whoever began it.

        What the author's close raises is logged. Cancelling the caller does not stop it.

        Args:
            reason: for the record of an episode that has not come to its end.
        """
        await asyncio.shield(self._begin_close(session, reason))

    def _begin_close(self, session: Session, reason: str = "closed") -> asyncio.Task[None]:
        """From now on the session's id is free and finds nothing; its slot is free when it is closed."""
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
        running = session.replies.cancel_all()
        if running:
            await asyncio.wait(running)
        session.execution.stop()
        session.snapshots.close()
        if session.has_forks:
            self._end_unjoined(session)
        self.retire_handle(session)
        try:
            await close_instance(session.execution, reason)
            if session.execution.sink is not None and session.execution.episode.id is not None:
                await session.execution.sink.written(session.execution.episode.id)
        finally:
            self._ending.discard(session)
            if session.credential is not None:
                self._membership.let_go(session.id)
            self.slots.free()

    async def open_socket(self, credential: Credential | None, *, resume: bool) -> Session:
        """The session for a socket: a new one, or the one that its client lost.

        Args:
            credential: what the client chose, None if it does not mean to come back.
            resume: the client had a session; a new one would not be it.

        Raises:
            SessionLost: there is nothing to resume.
            Unauthorized: the id is somebody else's.
            CapacityReached, FactoryError, ExecutionError: as `open`.
        """
        if credential is None:
            if resume:
                raise InvalidMessage("to resume, send the session's id and token")
            return await self._open(self._membership.new_id(), Origin.SOCKET)
        while (opening := self._opening_socket.get(credential.session_id)) is not None:
            # Its client is impatient and has connected again: it means the session that is being made.
            await asyncio.wait({opening})
        session = self._sessions.get(credential.session_id)
        if session is not None:
            mine = session.credential
            if mine is None or not hmac.compare_digest(mine.token.encode(), credential.token.encode()):
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

    async def fork(
        self, parent: Session, snapshot: Snapshot, credential: Credential | None, timeout_s: float | None
    ) -> Session:
        """A session of its own that goes on from a snapshot. Nobody holds it yet: a socket may join it by its id.

        Until one does, it ends with the session that asked for it.

        Args:
            credential: what the client chose for it, None if it does not mean to come back.
            timeout_s: seconds that the restoring may take.

        Raises:
            NotSupported: there is one session at a time, or the new instance cannot be as the snapshot is.
            InvalidMessage: the id is taken.
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
            await session.go_on_from(snapshot, timeout_s)
            if parent.closing is not None:
                raise SessionLost("the session was closed")  # who asked will not hear of the fork
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
            self._membership.let_go(session_id)  # the session, if there is one, holds it

    def _end_unjoined(self, parent: Session) -> None:
        """Nobody but the client of ``parent`` knew of those forks of its that no socket has joined."""
        for session in list(self._sessions.values()):
            if session.forked_by == parent.id and not session.held and session.grace is None:
                self._begin_close(session)

    def new_snapshots(self) -> SnapshotStore:
        """A place for the snapshots of one session."""
        return SnapshotStore(self._config.max_snapshots, self._config.max_snapshot_bytes)

    async def release(self, session: Session, *, lost: bool) -> None:
        """The socket that held the session has ended, and has let go of it.

        Args:
            lost: it was lost; a client that chose a credential has `resume_grace_s` to come back, or has come already.
        """
        if session.origin is Origin.HTTP and session.closing is None:
            return  # it was there before the socket, and has other ways to be used
        grace_s = self._config.resume_grace_s
        if not lost or session.credential is None or grace_s <= 0 or self.slots.closed or session.closing is not None:
            await self.close(session, "disconnected" if lost else "shutdown" if self.slots.closed else "closed")
        elif not session.held:
            session.grace = asyncio.get_running_loop().call_later(grace_s, self.close_soon, session.id, "disconnected")

    def retire_handle(self, session: Session) -> None:
        """The session's episode is past."""
        handle, session.handle = session.handle, None
        if handle is not None:
            self.handles.retire(handle)

    def close_soon(self, session_id: str, reason: str = "closed") -> None:
        """Close the session of that id, if there is one or one is being made, without waiting."""
        opening = self._opening.get(session_id)
        if opening is not None:
            opening.add_done_callback(lambda task: self.close_soon(session_id, reason))
        session = self._sessions.get(session_id)
        if session is not None:
            self._begin_close(session, reason)

    def refuse_stuck_code(self) -> None:
        """Refuse to run more code that may get stuck, where too much of it is.

        Raises:
            CapacityReached: there is.
        """
        if self.slots.overrun:
            raise self.slots.refusal("too much code is stuck that cannot be stopped")

    async def replace(self, session: Session) -> None:
        """A new instance for a session whose own is stuck; the old one is left to its thread.

        Cancelling does not stop it: whoever asks again waits for the same one.

        Raises:
            as `open`.
        """
        if session.replacing is None:
            if not self.slots.open:
                raise self.slots.refusal("too many environments are stuck in code that cannot be stopped")
            session.replacing = asyncio.ensure_future(self._replace(session))
            session.replacing.add_done_callback(_retrieved)
        await asyncio.shield(session.replacing)

    async def _replace(self, session: Session) -> None:
        try:
            execution = await self._made(self._make(session.origin))
        finally:
            session.replacing = None
        self.retire_handle(session)  # what it lists is asked of the instance, before that is closed
        left, session.execution = session.execution, execution
        await close_instance(left)

    async def _open(self, session_id: str, origin: Origin, credential: Credential | None = None) -> Session:
        await self.slots.take(self.make_room, origin.orchestrated)
        making = self._make(origin)
        try:
            execution = await self._made(making)
        except asyncio.CancelledError:
            abandoned = asyncio.ensure_future(self._abandon(making))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise
        except BaseException:
            self.slots.free()
            raise
        session = Session(self, session_id, origin, execution, credential)
        self._sessions[session_id] = session
        if credential is not None:
            self._membership.hold(session_id)
        return session

    async def _abandon(self, making: Making) -> None:
        """Whoever asked for an instance has gone; its constructor goes on, and has the slot until it is closed."""
        try:
            await close_instance(await making.result())
        except McpenvError:
            logger.warning("an environment that nobody waited for any more could not be made")
        finally:
            self.slots.free()

    def _make(self, origin: Origin) -> Making:
        return self._source.make(orchestrated=origin.orchestrated, on_stuck=self.slots.quarantine)

    async def _made(self, making: Making) -> Execution:
        execution = await making.result()
        execution.user_code.on_stuck = self.slots.quarantine
        return execution

    async def make_room(self, orchestrated: bool) -> None:
        """Free a slot, if one can be, for a session that has an orchestrator, or has none."""
        while self.slots.full and (victim := self.who_gives_way(orchestrated)) is not None:
            await self.close(victim)

    def who_gives_way(self, orchestrated: bool) -> Session | None:
        """A session that nobody misses; with one slot, an idle agent's too.

        Nobody misses that of a client which never came back after ``/reset``, nor sent an agent.

        Args:
            orchestrated: whether it is for a session that has an orchestrator.
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
        """End sessions that nobody uses, never one with a call under way."""
        while True:
            await asyncio.sleep(min(self._config.session_timeout_s / 4, 30.0))
            self._end_idle()

    def _end_idle(self) -> None:
        # Looked at and ended without an await between, so that no call comes in between; and in a function of its
        # own, so that a reaper that sleeps holds no session.
        for session in list(self._sessions.values()):
            if session.idle_s >= self._config.session_timeout_s:
                logger.info("session ends after %.0f s without use", session.idle_s)
                self._begin_close(session, "idle")
                self._tell_connection(session)

    def _tell_connection(self, session: Session) -> None:
        """Its client's next call would find itself in a new world, and not know."""
        if session.origin is Origin.CONNECTION and self.on_connection_end is not None:
            self.on_connection_end(session.id)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Everybody who waited for it may be gone."""
    if not task.cancelled():
        task.exception()
