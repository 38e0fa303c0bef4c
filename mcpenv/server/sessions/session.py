"""A session: one environment instance, for one orchestrator or client."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from mcpenv.execution.execution import Execution
from mcpenv.execution.snapshots import Snapshot
from mcpenv.tasks.assignment import Wanted
from mcpenv_client.errors import SessionLost
from mcpenv_client.types.observations import Observation
from mcpenv_client.wire.protocol import EpisodeState

from .credential import Credential
from .handles import Handle
from .idempotency import IdempotencyCache
from .live import Live
from .pause import Pause

if TYPE_CHECKING:
    from .pool import SessionPool

SHOWN = 13
"""The characters of an id that logs show, as ``mcpenv sessions`` does."""


class Origin(Enum):
    """The kind of request that opened a session."""

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
        """True if the session has episodes."""
        return self in (Origin.SOCKET, Origin.HTTP)


class Socket(Protocol):
    """The connection that holds a session for an orchestrator."""

    def evict(self, why: str) -> None:
        """Release the session and close.

        Args:
            why: the reason for the client, in ASCII.
        """
        ...

    def dismiss(self, *, at_once: bool) -> None:
        """Close after the step in progress, because the server ends; without one, now if ``at_once``."""
        ...


class Session:
    """One environment instance, for one orchestrator or client.

    Attributes:
        id: the address of the session.
        execution: the instance; a reset replaces it if its code could not be stopped.
        actions: the types of actions that a step may have.
        operations: the operation of each frame.
        replies: the answers to requests that carry an id.
        snapshots: the snapshots that the session made and can name.
        base_url: the server's address as its orchestrator sees it, for the URL of the episode's handle.
        handle: the running episode's handle.
        live: those who watch it.
        agent: the name of the agent that plays, if its client has said it.
        pause: the last pause; None if there was none.
        held: an open socket holds the session, which is then never idle.
        claimed: a later request named its id (HTTP).
        closing: the task that closes it; None while it is open.
        replacing: the task that makes a new instance for it.
        forked_by: the id of the session from which it was forked; None if it is no fork.
        has_forks: other sessions were forked from it.
    """

    __slots__ = (
        "_pool",
        "_resetting",
        "_socket",
        "actions",
        "agent",
        "base_url",
        "claimed",
        "closing",
        "created_at",
        "created_monotonic",
        "credential",
        "execution",
        "forked_by",
        "grace",
        "handle",
        "has_forks",
        "held",
        "id",
        "last_used",
        "live",
        "operations",
        "origin",
        "pause",
        "replacing",
        "replies",
        "snapshots",
    )

    def __init__(
        self, pool: SessionPool, session_id: str, origin: Origin, execution: Execution, credential: Credential | None
    ) -> None:
        self._pool = pool
        self.actions, self.operations = pool.actions, pool.operations
        self._socket: Socket | None = None
        self._resetting = asyncio.Lock()
        self.id = session_id
        self.origin = origin
        self.agent: str | None = None
        self.pause: Pause | None = None
        self.use(execution)
        self.credential = credential
        self.replies = IdempotencyCache()
        self.snapshots = pool.new_snapshots()
        self.base_url = ""
        self.handle: Handle | None = None
        self.live = Live()
        self.held = origin is Origin.SOCKET
        self.grace: asyncio.TimerHandle | None = None
        self.claimed = False
        self.closing: asyncio.Task[None] | None = None
        self.replacing: asyncio.Task[None] | None = None
        self.forked_by: str | None = None
        self.has_forks = False
        self.created_at = time.time()
        self.created_monotonic = self.last_used = time.monotonic()

    def attach(self, socket: Socket) -> None:
        """Hold the session by a socket, and evict the previous one."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
        before, self._socket = self._socket, socket
        self.held = True
        if before is not None:
            before.evict("another socket has come for this session")

    def detach(self, socket: Socket) -> bool:
        """Release the session if this socket holds it; return True if it did."""
        if self._socket is not socket:
            return False
        self._socket = None
        self.held = False
        self.last_used = time.monotonic()
        return True

    def evict(self, why: str = "this session was ended") -> None:
        """Evict the socket that holds the session, if any. It is closed with the reason."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.evict(why)

    def dismiss(self, *, at_once: bool) -> None:
        """Close the socket that holds the session: after the step in progress, or ``at_once`` without one."""
        if self._socket is not None:
            self._socket.dismiss(at_once=at_once)

    @property
    def label(self) -> str:
        """The name of the session in logs: its id, or the beginning of an id with which a client could join it."""
        public = self.origin in (Origin.PRINCIPAL, Origin.SERVICE)
        return self.id if public else self.id[:SHOWN]

    @property
    def last_activity(self) -> float:
        """The time of the last use (``time.monotonic``, seconds)."""
        return time.monotonic() if self.execution.busy else max(self.last_used, self.execution.last_active)

    @property
    def idle_s(self) -> float:
        """The seconds since the last use; 0 while the session is in use."""
        return 0.0 if self.held or self.execution.busy else time.monotonic() - self.last_activity

    def use(self, execution: Execution) -> None:
        """Use an instance from now on."""
        self.execution = execution
        self._name_agent()
        until = self.paused_until
        if until is not None:
            self.hold_up(until)

    @property
    def paused_until(self) -> float | None:
        """The deadline of the pause, in seconds since the epoch; None if the session is not paused."""
        return None if self.pause is None or self.pause.over else self.pause.until

    def hold_up(self, until: float) -> Pause:
        """Pause, or pause until another time.

        Args:
            until: the deadline, in seconds since the epoch.
        """
        before = self.pause
        if before is not None and not before.over and before.lock is self.execution.lock:
            before.last_until(until)
            return before
        self.pause = Pause(self.execution.lock, until)
        if before is not None:
            before.resume()
        return self.pause

    def resume(self) -> bool:
        """End the pause; return False if there is none."""
        paused = self.paused_until is not None
        if self.pause is not None:
            self.pause.resume()
        return paused

    def played_by(self, agent: str) -> None:
        """Name the agent that plays, for its records and for those who watch."""
        self.agent = agent
        self._name_agent()

    def _name_agent(self) -> None:
        if self.agent is not None and self.execution.sink is not None:
            self.execution.sink.agent = self.agent

    async def reset(
        self, seed: int | None, episode_id: str | None, wanted: Wanted, timeout_s: float | None = None
    ) -> Observation:
        """Begin an episode; on a new instance if the instance still runs a step that could not be stopped.

        Raises:
            WireError: refused, or the author's code failed.
        """
        slots = self._pool.slots
        if slots.closed:
            raise slots.refusal("this server is about to end")
        async with self._resetting:  # the next one would begin its episode before this one's has its handle
            before = self.execution.episode.id
            if wanted.any and slots.shut:
                # What makes tasks belongs to no instance: each try that is abandoned leaves one thread more.
                raise slots.refusal(slots.shut)
            assigned = wanted.assigned or await self.execution.assign(seed, wanted, timeout_s)
            if assigned.seed is None and self._pool.durability is not None and self.execution.hooks.options.takes_seed:
                assigned = replace(assigned, seed=secrets.randbits(31))  # it can be played again only if that is known
            if self.execution.user_code.abandoned:
                await self._pool.replace(self)
            return await self._begun(self.execution.begin(assigned, episode_id, timeout_s=timeout_s), before)

    async def restore(self, snapshot: Snapshot, timeout_s: float | None = None) -> Observation:
        """Continue from a snapshot. After a step that could not be stopped, on a new instance.

        Raises:
            WireError: refused, or the author's code failed.
        """
        async with self._resetting:  # the next one would begin its episode before this one's has its handle
            if self.execution.user_code.abandoned:
                await self._pool.replace(self)
            return await self._begun(self.execution.restore(snapshot, timeout_s=timeout_s), self.execution.episode.id)

    async def fork(self, snapshot: Snapshot, credential: Credential | None, timeout_s: float | None) -> Session:
        """Open another session that continues from a snapshot."""
        return await self._pool.fork(self, snapshot, credential, timeout_s)

    @property
    def mcp_url(self) -> str | None:
        """The URL at which an agent acts on the episode; None before the first reset."""
        return None if self.handle is None else f"{self.base_url}/episodes/{self.handle.value}/mcp"

    async def renew(self) -> None:
        """Replace the instance if its code could not be stopped and it has no episode: it can begin none."""
        if self.execution.user_code.abandoned and self.execution.episode.state is EpisodeState.NEW:
            await self._pool.replace(self)

    async def _begun(self, beginning: Awaitable[Observation], before: str | None) -> Observation:
        """Await a reset or restore and issue a handle. On failure the previous handle stays valid.

        Args:
            before: the episode that it ends, which is on disk when this returns, where episodes are recorded.
        """
        episode = self.execution.episode
        number = episode.number
        try:
            observation = await beginning
        finally:
            if episode.number != number:
                self._pool.retire_handle(self)
        if before is not None and self.execution.sink is not None:
            await self._pool.wait_recorded(self.execution, before)
        if self.closing is not None:
            raise SessionLost("the session was closed")
        self.handle = self._pool.handles.mint(self.execution)
        observation.info["mcp_url"] = self.mcp_url
        self.live.tell()
        if self._pool.durability is not None:
            await self._pool.durability.begun(self, observation)
        return observation
