"""Sessions: one environment instance each, for one orchestrator or client. One dictionary, one way to close."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from mcpenv_client.errors import CapacityReached, InvalidMessage, McpenvError, SessionLost, Unauthorized
from mcpenv_client.observations import Observation
from mcpenv_client.records import Plane, StepRecord
from mcpenv_client.state import State
from mcpenv_client.wire import EpisodeState

from . import shim
from .config import MANY_SESSIONS, ServerConfig
from .errors import ConfigurationError
from .execution import Execution
from .handles import Handle, Handles
from .replies import Replies
from .source import EnvironmentSource, close_instance

logger = logging.getLogger("mcpenv")

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{16,128}")

RETRY_AFTER_S = 5.0
"""When a refused client is told to ask again, in seconds."""


class Origin(Enum):
    """Who opened a session."""

    SOCKET = "socket"
    """A ``/ws`` connection."""
    HTTP = "http"
    """``POST /reset``."""
    CONNECTION = "connection"
    """A handshake MCP session."""
    PRINCIPAL = "principal"
    """An authenticated agent, whatever its connections."""
    SERVICE = "service"
    """All anonymous stateless MCP clients together, and stdio."""

    @property
    def orchestrated(self) -> bool:
        """Whether it has episodes."""
        return self in (Origin.SOCKET, Origin.HTTP)


class Socket(Protocol):
    """What holds a session on behalf of an orchestrator."""

    def evict(self) -> None:
        """Another socket has come for the session."""
        ...

    def dismiss(self, *, at_once: bool) -> None:
        """The server is about to end: no more after the step under way; if there is none, ``at_once`` or later."""
        ...


@dataclass(frozen=True, slots=True)
class Credential:
    """The id and the secret that a client chose for its session, so that it can come back after losing its socket."""

    session_id: str
    token: str

    @classmethod
    def of(cls, session_id: str | None, token: str | None) -> Credential:
        """Check what a client sent.

        Raises:
            InvalidMessage: not an id of 16 to 128 URL-safe characters and a token of 16 to 256.
        """
        if session_id is None or token is None or not _SESSION_ID.fullmatch(session_id):
            raise InvalidMessage("to resume, send a session id of 16 to 128 URL-safe characters, and a token")
        if not 16 <= len(token) <= 256:
            raise InvalidMessage("a session token has 16 to 256 characters")
        return cls(session_id, token)


class Session:
    """One environment instance at work for somebody.

    Attributes:
        id: how the session is addressed.
        execution: the instance at work; another after a reset that had to leave a stuck one behind.
        replies: the answers to requests that carry an id.
        base_url: the server's address as its orchestrator sees it, for the URL of the episode's handle.
        handle: the running episode's handle.
        held: an open socket holds it: never idle.
        claimed: somebody came back with its id (HTTP).
        closing: its end under way, or over; None while it is open.
        replacing: a new instance is being made for it.
    """

    __slots__ = (
        "_pool",
        "_resetting",
        "_socket",
        "base_url",
        "claimed",
        "closing",
        "created_at",
        "created_monotonic",
        "credential",
        "execution",
        "grace",
        "handle",
        "held",
        "id",
        "last_used",
        "origin",
        "replacing",
        "replies",
    )

    def __init__(
        self, pool: SessionPool, session_id: str, origin: Origin, execution: Execution, credential: Credential | None
    ) -> None:
        self._pool = pool
        self._socket: Socket | None = None
        self._resetting = asyncio.Lock()
        self.id = session_id
        self.origin = origin
        self.execution = execution
        self.credential = credential
        self.replies = Replies()
        self.base_url = ""
        self.handle: Handle | None = None
        self.held = origin is Origin.SOCKET
        self.grace: asyncio.TimerHandle | None = None
        self.claimed = False
        self.closing: asyncio.Task[None] | None = None
        self.replacing: asyncio.Task[None] | None = None
        self.created_at = time.time()
        self.created_monotonic = self.last_used = time.monotonic()

    def detach(self) -> None:
        """The socket has left; the session goes on without one."""
        self._socket = None
        self.held = False
        self.last_used = time.monotonic()

    def attach(self, socket: Socket) -> None:
        """A socket holds the session from now on; the one before is evicted."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
        before, self._socket = self._socket, socket
        self.held = True
        if before is not None:
            before.evict()

    def evict(self) -> None:
        """Whoever holds the session lets go of it."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.evict()

    def dismiss(self, *, at_once: bool) -> None:
        """Whoever holds the session lets go of it: after the step under way, or ``at_once`` if it has none."""
        if self._socket is not None:
            self._socket.dismiss(at_once=at_once)

    @property
    def last_activity(self) -> float:
        """When it was last used (``time.monotonic``, seconds)."""
        return time.monotonic() if self.execution.busy else max(self.last_used, self.execution.last_active)

    @property
    def idle_s(self) -> float:
        """Seconds since it was last used; 0 while it is in use."""
        if self.held or self.execution.busy:
            return 0.0
        return time.monotonic() - self.last_activity

    async def reset(self, data: Mapping[str, Any], timeout_s: float | None = None) -> Observation:
        """Reset with the ``data`` of a reset frame. After a step that could not be stopped, on a new instance.

        Raises:
            WireError: refused, or the author's reset failed.
        """
        seed, episode_id, options = self.execution.env._reset_options.from_wire(data)
        async with self._resetting:  # the next one would begin its episode before this one's has its handle
            if self.execution.author.stuck:
                await self._pool.replace(self)
            self._pool.retire_handle(self)
            observation = await self.execution.reset(seed, episode_id, options, timeout_s=timeout_s)
            self.handle = self._pool.handles.mint(self.execution)
            observation.info["mcp_url"] = f"{self.base_url}/episodes/{self.handle.value}/mcp"
            return observation

    async def step(self, data: Mapping[str, Any], timeout_s: float | None = None) -> Observation:
        """Step with the ``data`` of a step frame.

        Raises:
            WireError: refused, or the author's code failed.
        """
        action = self._pool.actions.decode(dict(data))
        await self._renew()
        return await shim.step(self.execution, action, plane=Plane.CONTROL, timeout_s=timeout_s)

    async def call_tool(self, name: str, arguments: dict[str, Any], timeout_s: float | None = None) -> StepRecord:
        """The step that calls a tool, as it was recorded.

        Raises:
            WireError: refused, or the author's code failed.
        """
        await self._renew()
        return await self.execution.call_tool(name, arguments, plane=Plane.CONTROL, timeout_s=timeout_s)

    async def state(self, timeout_s: float | None = None) -> State:
        """The environment's state.

        Raises:
            WireError: the author's code failed.
        """
        await self._renew()
        return await self.execution.read_state(timeout_s=timeout_s)

    async def _renew(self) -> None:
        """After a reset that could not be stopped there is no episode yet: what comes next is for a new instance."""
        if self.execution.author.stuck and self.execution.episode.state is EpisodeState.NEW:
            await self._pool.replace(self)


class SessionPool:
    """The sessions of a server.

    Attributes:
        actions: what a step may be.
        handles: the addresses of the episodes.
        draining: nothing new is taken.
        on_connection_end: told the id of a session of a handshake connection that was ended here, not by its client.
    """

    def __init__(self, source: EnvironmentSource, config: ServerConfig) -> None:
        self._source = source
        self._config = config
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._reserved = 0
        self._quarantined = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._ending: set[Session] = set()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._opening_socket: dict[str, asyncio.Future[None]] = {}
        self.actions = source.actions
        self.handles = Handles()
        self.draining = False
        self.on_connection_end: Callable[[str], None] | None = None

    @property
    def max_sessions(self) -> int:
        """How many sessions there may be."""
        if self._config.max_concurrent_envs is not None:
            return self._config.max_concurrent_envs
        cls = self._source.environment_class
        return MANY_SESSIONS if cls is not None and cls.SUPPORTS_CONCURRENT_SESSIONS else 1

    @property
    def active_sessions(self) -> int:
        """How many there are, those being made or closed included."""
        return len(self._sessions) + len(self._ending) + self._reserved

    @property
    def quarantined(self) -> int:
        """Instances left behind with code that could not be stopped."""
        return self._quarantined

    @property
    def ready(self) -> bool:
        """Whether new sessions are taken."""
        return not self.draining and self._quarantined <= self._config.max_quarantined

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
        if self.max_sessions < 1:
            raise ConfigurationError(f"max sessions is {self.max_sessions}; at least 1 is needed")
        if self.max_sessions > 1 and not cls.SUPPORTS_CONCURRENT_SESSIONS:
            raise ConfigurationError(
                f"{self.max_sessions} sessions asked for, but {cls.__name__} allows one; "
                "set SUPPORTS_CONCURRENT_SESSIONS = True in the class if its instances do not share state"
            )
        self.actions = self._source.actions
        reaper = asyncio.create_task(self._reap(), name="mcpenv-reaper")
        try:
            yield
        finally:
            self.draining = True
            reaper.cancel()
            self.handles.close()
            opening = list(self._opening.values())
            for task in opening:
                task.cancel()
            if opening:
                await asyncio.wait(opening)
            for session in list(self._sessions.values()):
                self._begin_close(session)
            while self._ending:
                await asyncio.wait([session.closing for session in self._ending if session.closing is not None])
            if self._abandoned:
                await asyncio.wait(self._abandoned, timeout=self._config.shutdown_timeout_s)

    async def drain(self) -> None:
        """Take nothing new; return when the calls have ended that are under way or wait for their turn now.

        Who waits for a session is refused, and sockets end after their step.
        """
        self.draining = True
        queue, self._queue = self._queue, deque()
        for turn in queue:
            if not turn.done():
                turn.set_exception(self._refusal("this server is about to end"))
        for session in self.sessions():
            # An agent may be at work in a session whose socket is idle.
            session.dismiss(at_once=not session.execution.busy)
        for execution in [session.execution for session in self._sessions.values()]:
            if execution.busy and not execution.author.stuck:
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

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return len(self._queue)

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
        if session.execution.author.stuck and not session.origin.orchestrated:
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
        return await self._open(secrets.token_urlsafe(24), origin)

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

    async def close(self, session: Session) -> None:
        """Close a session once and free its slot; return when it is closed, whoever began it.

        What the author's close raises is logged. Cancelling the caller does not stop it.
        """
        await asyncio.shield(self._begin_close(session))

    def _begin_close(self, session: Session) -> asyncio.Task[None]:
        """From now on the session's id is free and finds nothing; its slot is free when it is closed."""
        if session.closing is None:
            if session.grace is not None:
                session.grace.cancel()
            del self._sessions[session.id]
            self._ending.add(session)
            session.closing = asyncio.ensure_future(self._close(session))
        return session.closing

    async def _close(self, session: Session) -> None:
        if session.replacing is not None:
            await asyncio.wait({session.replacing})
        running = session.replies.cancel_all()
        if running:
            await asyncio.wait(running)
        session.execution.stop()
        self.retire_handle(session)
        try:
            await close_instance(session.execution)
        finally:
            self._ending.discard(session)
            self._wake_next()

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
            return await self._open(secrets.token_urlsafe(24), Origin.SOCKET)
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

    async def release(self, session: Session, *, lost: bool) -> None:
        """The socket that held the session has ended.

        Args:
            lost: it was lost; a client that chose a credential has `resume_grace_s` to come back.
        """
        if session.origin is Origin.HTTP and session.closing is None:
            session.detach()  # it was there before the socket, and has other ways to be used
            return
        grace_s = self._config.resume_grace_s
        if not lost or session.credential is None or grace_s <= 0 or self.draining or session.closing is not None:
            await self.close(session)
            return
        session.held = False
        session.last_used = time.monotonic()
        session.grace = asyncio.get_running_loop().call_later(grace_s, self.close_soon, session.id)

    def retire_handle(self, session: Session) -> None:
        """The session's episode is past."""
        handle, session.handle = session.handle, None
        if handle is not None:
            self.handles.retire(handle)

    def close_soon(self, session_id: str) -> None:
        """Close the session of that id, if there is one or one is being made, without waiting."""
        opening = self._opening.get(session_id)
        if opening is not None:
            opening.add_done_callback(lambda task: self.close_soon(session_id))
        session = self._sessions.get(session_id)
        if session is not None:
            self._begin_close(session)

    async def replace(self, session: Session) -> None:
        """A new instance for a session whose own is stuck; the old one is left to its thread.

        Cancelling does not stop it: whoever asks again waits for the same one.

        Raises:
            as `open`.
        """
        if session.replacing is None:
            if not self.ready:
                raise self._refusal("too many environments are stuck in code that cannot be stopped")
            session.replacing = asyncio.ensure_future(self._replace(session))
            session.replacing.add_done_callback(_retrieved)
        await asyncio.shield(session.replacing)

    async def _replace(self, session: Session) -> None:
        try:
            execution = await self._make(session.origin)
        finally:
            session.replacing = None
        self.retire_handle(session)  # what it lists is asked of the instance, before that is closed
        left, session.execution = session.execution, execution
        await close_instance(left)

    async def _open(self, session_id: str, origin: Origin, credential: Credential | None = None) -> Session:
        await self._take_slot(origin)
        making = asyncio.ensure_future(self._make(origin))
        try:
            execution = await asyncio.shield(making)
        except asyncio.CancelledError:
            abandoned = asyncio.ensure_future(self._abandon(making))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise
        except BaseException:
            self._free_reserved()
            raise
        session = Session(self, session_id, origin, execution, credential)
        self._reserved -= 1
        self._sessions[session_id] = session
        return session

    async def _abandon(self, making: asyncio.Task[Execution]) -> None:
        """Whoever asked for an instance has gone; its constructor goes on, and has the slot until it is closed."""
        try:
            await close_instance(await making)
        except McpenvError:
            logger.warning("an environment that nobody waited for any more could not be made")
        finally:
            self._free_reserved()

    def _free_reserved(self) -> None:
        self._reserved -= 1
        self._wake_next()

    async def _make(self, origin: Origin) -> Execution:
        execution = await self._source.make(orchestrated=origin.orchestrated, on_stuck=self._count_stuck)
        execution.author.on_stuck = self._count_stuck
        return execution

    async def _take_slot(self, origin: Origin) -> None:
        """Reserve a slot; when there is none, wait in line for at most ``queue_timeout_s``."""
        if not self.ready:
            raise self._refusal("this server takes no new sessions now")
        if not self._queue and await self._make_room(origin):
            self._reserved += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                await turn
        except TimeoutError as error:
            if _granted(turn):
                return  # the slot came at the last moment
            raise self._refusal(f"all {self.max_sessions} sessions are in use") from error
        except asyncio.CancelledError:
            if _granted(turn):
                self._free_reserved()
            raise
        finally:
            if turn in self._queue:
                self._queue.remove(turn)

    async def _make_room(self, origin: Origin) -> bool:
        while self.active_sessions >= self.max_sessions:
            victim = self._who_gives_way(origin)
            if victim is None:
                return False
            await self.close(victim)
        return True

    def _wake_next(self) -> None:
        """Give a free slot to whoever waits longest."""
        while self._queue and self.active_sessions < self.max_sessions:
            turn = self._queue.popleft()
            if not turn.done():
                self._reserved += 1
                turn.set_result(None)

    def _who_gives_way(self, origin: Origin) -> Session | None:
        """A session that nobody misses; with one slot, an idle agent's too.

        Nobody misses that of a client which never came back after ``/reset``, nor sent an agent.
        """
        for session in sorted(self._sessions.values(), key=lambda s: s.last_used):
            if session.held or session.execution.busy:
                continue
            met = session.claimed or (session.handle is not None and session.handle.used)
            if session.origin is Origin.HTTP and not met:
                return session
            if self.max_sessions == 1 and origin.orchestrated and not session.origin.orchestrated:
                return session
        return None

    def _refusal(self, why: str) -> CapacityReached:
        return CapacityReached(
            why,
            active_sessions=self.active_sessions,
            max_sessions=self.max_sessions,
            retry_after_s=RETRY_AFTER_S,
        )

    def _count_stuck(self) -> Callable[[], None]:
        """Count an instance whose thread could not be stopped, until it returns (called from that thread)."""
        self._quarantined += 1
        loop = asyncio.get_running_loop()

        def returned() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._count_returned)

        return returned

    def _count_returned(self) -> None:
        self._quarantined -= 1

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
                self._begin_close(session)
                self._tell_connection(session)

    def _tell_connection(self, session: Session) -> None:
        """Its client's next call would find itself in a new world, and not know."""
        if session.origin is Origin.CONNECTION and self.on_connection_end is not None:
            self.on_connection_end(session.id)


def _granted(turn: asyncio.Future[None]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Everybody who waited for it may be gone."""
    if not task.cancelled():
        task.exception()
