"""Sessions: one environment instance each, for one orchestrator or client. One dictionary, one way to close."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from mcpenv_client.errors import CapacityReached, McpenvError, SessionLost
from mcpenv_client.observations import Observation
from mcpenv_client.records import Plane
from mcpenv_client.state import State

from . import shim
from .config import MANY_SESSIONS, ServerConfig
from .errors import ConfigurationError
from .execution import Execution
from .source import EnvironmentSource

logger = logging.getLogger("mcpenv")

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
    SERVICE = "service"
    """All anonymous stateless MCP clients together, and stdio."""

    @property
    def orchestrated(self) -> bool:
        """Whether it has episodes."""
        return self in (Origin.SOCKET, Origin.HTTP)


class Session:
    """One environment instance at work for somebody.

    Attributes:
        id: how the session is addressed.
        execution: the instance at work; another after a reset that had to leave a stuck one behind.
        held: an open socket holds it: never idle.
        claimed: somebody came back with its id (HTTP).
    """

    __slots__ = ("_pool", "claimed", "closed", "created_at", "execution", "held", "id", "last_used", "origin")

    def __init__(self, pool: SessionPool, session_id: str, origin: Origin, execution: Execution) -> None:
        self._pool = pool
        self.id = session_id
        self.origin = origin
        self.execution = execution
        self.held = origin is Origin.SOCKET
        self.claimed = False
        self.closed = False
        self.created_at = time.time()
        self.last_used = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since it was last used; 0 while it is in use."""
        if self.held or self.execution.busy:
            return 0.0
        return time.monotonic() - max(self.last_used, self.execution.last_active)

    async def reset(self, data: Mapping[str, Any], timeout_s: float | None = None) -> Observation:
        """Reset with the ``data`` of a reset frame. After a step that could not be stopped, on a new instance.

        Raises:
            WireError: refused, or the author's reset failed.
        """
        seed, episode_id, options = self.execution.env._reset_options.from_wire(data)
        if self.execution.author.stuck:
            self.execution = await self._pool.replace(self)
        return await self.execution.reset(seed, episode_id, options, timeout_s=timeout_s)

    async def step(self, data: Mapping[str, Any], timeout_s: float | None = None) -> Observation:
        """Step with the ``data`` of a step frame.

        Raises:
            WireError: refused, or the author's code failed.
        """
        action = self._pool.actions.decode(dict(data))
        return await shim.step(self.execution, action, plane=Plane.CONTROL, timeout_s=timeout_s)

    async def state(self, timeout_s: float | None = None) -> State:
        """The environment's state.

        Raises:
            WireError: the author's code failed.
        """
        return await self.execution.read_state(timeout_s=timeout_s)


class SessionPool:
    """The sessions of a server."""

    def __init__(self, source: EnvironmentSource, config: ServerConfig) -> None:
        self._source = source
        self._config = config
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}
        self._reserved = 0
        self._quarantined = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.actions = source.actions
        self.draining = False

    @property
    def max_sessions(self) -> int:
        """How many sessions there may be."""
        if self._config.max_concurrent_envs is not None:
            return self._config.max_concurrent_envs
        cls = self._source.environment_class
        return MANY_SESSIONS if cls is not None and cls.SUPPORTS_CONCURRENT_SESSIONS else 1

    @property
    def active_sessions(self) -> int:
        """How many there are, those being made included."""
        return len(self._sessions) + self._reserved

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
            for opening in list(self._opening.values()):
                opening.cancel()
            await asyncio.gather(*(self.close(session) for session in list(self._sessions.values())))
            if self._closing:
                await asyncio.wait(self._closing)

    async def wait_idle(self) -> None:
        """Return once no session has a call under way."""
        while True:
            executions = [
                s.execution for s in self._sessions.values() if s.execution.busy and not s.execution.author.stuck
            ]
            if not executions:
                return
            for execution in executions:
                await execution.wait_idle()

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

    def find(self, session_id: str) -> Session | None:
        """The session of that id, if there is one."""
        session = self._sessions.get(session_id)
        if session is not None:
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
        """Close a session once and free its slot. What the author's close raises is logged."""
        if session.closed:
            return
        session.closed = True
        try:
            await self._close_execution(session.execution)
        finally:
            self._sessions.pop(session.id, None)

    def close_soon(self, session_id: str) -> None:
        """Close the session of that id, if there is one, without waiting."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._spawn(self.close(session))

    async def replace(self, session: Session) -> Execution:
        """A new instance for a session whose own is stuck; the old one is left to its thread.

        Raises:
            as `open`.
        """
        if not self.ready:
            raise self._refusal("too many environments are stuck in code that cannot be stopped")
        left = session.execution
        execution = await self._make(session.origin)
        await self._close_execution(left)
        return execution

    async def _open(self, session_id: str, origin: Origin) -> Session:
        await self._make_room(origin)
        self._reserved += 1
        try:
            execution = await self._make(origin)
        finally:
            self._reserved -= 1
        session = Session(self, session_id, origin, execution)
        self._sessions[session_id] = session
        return session

    async def _make(self, origin: Origin) -> Execution:
        execution = await self._source.make(orchestrated=origin.orchestrated)
        execution.author.on_stuck = self._count_stuck
        return execution

    async def _make_room(self, origin: Origin) -> None:
        if not self.ready:
            raise self._refusal("this server takes no new sessions now")
        while self.active_sessions >= self.max_sessions:
            victim = self._who_gives_way(origin)
            if victim is None:
                raise self._refusal(f"all {self.max_sessions} sessions are in use")
            await self.close(victim)

    def _who_gives_way(self, origin: Origin) -> Session | None:
        """A session that nobody misses: ``/reset`` by a client that never came back; with one slot, an idle agent's."""
        for session in sorted(self._sessions.values(), key=lambda s: s.last_used):
            if session.closed or session.held or session.execution.busy:
                continue
            if session.origin is Origin.HTTP and not session.claimed:
                return session
            if self.max_sessions == 1 and origin.orchestrated and not session.origin.orchestrated:
                return session
        return None

    def _refusal(self, why: str) -> CapacityReached:
        return CapacityReached(
            why, active_sessions=self.active_sessions, max_sessions=self.max_sessions, retry_after_s=RETRY_AFTER_S
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

    async def _close_execution(self, execution: Execution) -> None:
        try:
            await execution.close()
        except McpenvError as error:
            logger.error("closing an environment failed: %s", error)
        finally:
            # A thread of its own ends after what is queued, also when its code cannot be stopped now.
            execution.author.runner.close()

    async def _reap(self) -> None:
        """End sessions that nobody uses, never one with a call under way."""
        limit = self._config.session_timeout_s
        while True:
            await asyncio.sleep(min(limit / 4, 30.0))
            for session in [s for s in self._sessions.values() if s.idle_s >= limit]:
                logger.info("session ends after %.0f s without use", session.idle_s)
                self._spawn(self.close(session))

    def _spawn(self, closing: Any) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _retrieved(task: asyncio.Task[Session]) -> None:
    """Everybody who waited for it may be gone."""
    if not task.cancelled():
        task.exception()
