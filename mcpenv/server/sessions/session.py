"""A session: one environment instance, for one orchestrator or client."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from mcpenv.execution import observations
from mcpenv.execution.execution import Execution
from mcpenv.execution.snapshots import Snapshot
from mcpenv.execution.snapshots.store import SnapshotStore
from mcpenv.tasks.assignment import Wanted
from mcpenv_client.errors import InvalidMessage, SessionLost
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane, StepRecord
from mcpenv_client.types.state import State
from mcpenv_client.wire.protocol import ActionTypes, EpisodeState, ending_of, observation_data

from .handles import Handle, Handles
from .idempotency import Replies

_CONTROL = Plane.CONTROL

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{16,128}")


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

    def evict(self, why: str) -> None:
        """It holds the session no more.

        Args:
            why: for its client, in ASCII.
        """
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


class Pool(Protocol):
    """What a session asks of where it is kept.

    Attributes:
        actions: what a step may be.
        handles: the addresses of the episodes.
    """

    actions: ActionTypes
    handles: Handles

    async def replace(self, session: Session) -> None:
        """A new instance for it; its own is stuck."""
        ...

    def refuse_stuck_code(self) -> None:
        """Refuse to run more code that may get stuck, where too much of it is."""
        ...

    def retire_handle(self, session: Session) -> None:
        """Its episode is past."""
        ...

    def new_snapshots(self) -> SnapshotStore:
        """A place for its snapshots."""
        ...

    async def fork(
        self, parent: Session, snapshot: Snapshot, credential: Credential | None, timeout_s: float | None
    ) -> Session:
        """A session of its own that goes on from a snapshot."""
        ...


class Session:
    """One environment instance at work for somebody.

    Attributes:
        id: how the session is addressed.
        execution: the instance at work; another after a reset that had to leave a stuck one behind.
        replies: the answers to requests that carry an id.
        snapshots: those that it made, and those that it can name.
        base_url: the server's address as its orchestrator sees it, for the URL of the episode's handle.
        handle: the running episode's handle.
        held: an open socket holds it: never idle.
        claimed: somebody came back with its id (HTTP).
        closing: its end under way, or over; None while it is open.
        replacing: a new instance is being made for it.
        forked_by: the id of the session that asked for it; None if it is no fork.
        has_forks: it asked for some.
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
        "forked_by",
        "grace",
        "handle",
        "has_forks",
        "held",
        "id",
        "last_used",
        "origin",
        "replacing",
        "replies",
        "snapshots",
    )

    def __init__(
        self, pool: Pool, session_id: str, origin: Origin, execution: Execution, credential: Credential | None
    ) -> None:
        self._pool = pool
        self._socket: Socket | None = None
        self._resetting = asyncio.Lock()
        self.id = session_id
        self.origin = origin
        self.execution = execution
        self.credential = credential
        self.replies = Replies()
        self.snapshots = pool.new_snapshots()
        self.base_url = ""
        self.handle: Handle | None = None
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
        """A socket holds the session from now on; the one before is evicted."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None
        before, self._socket = self._socket, socket
        self.held = True
        if before is not None:
            before.evict("another socket has come for this session")

    def let_go(self, socket: Socket) -> bool:
        """A socket has ended; whether it held the session, which nobody holds then."""
        if self._socket is not socket:
            return False
        self._socket = None
        self.held = False
        self.last_used = time.monotonic()
        return True

    def evict(self) -> None:
        """Whoever holds the session lets go of it."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.evict("this session was ended")

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
        env = self.execution.env
        seed, episode_id, wanted = Wanted.from_wire(data, env._reset_options, type(env).tasks)
        async with self._resetting:  # the next one would begin its episode before this one's has its handle
            before = self.execution.episode.id
            if wanted.any:
                # What makes tasks belongs to no instance: each try that gets stuck leaves one thread more.
                self._pool.refuse_stuck_code()
            assigned = await self.execution.assign(seed, wanted, timeout_s)
            if self.execution.user_code.stuck:
                await self._pool.replace(self)
            return await self._begun(self.execution.begin(assigned, episode_id, timeout_s=timeout_s), before)

    async def snapshot(self, data: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Hold the episode as it stands; gives what the answer of a snapshot frame says.

        Raises:
            WireError: refused, or the author's code failed.
        """
        _refuse_unknown(data)
        self.snapshots.refuse_full()
        await self._renew()
        held = await self.execution.snapshot(timeout_s=timeout_s)
        snapshot_id = self.snapshots.add(held)
        return {"snapshot_id": snapshot_id, "episode_id": held.episode_id, "step": held.step, "bytes": held.bytes}

    async def restore(self, data: Mapping[str, Any], timeout_s: float | None = None) -> Observation:
        """Go on from the snapshot that the ``data`` of a restore frame names.

        Raises:
            WireError: refused, or the author's code failed.
        """
        _refuse_unknown(data, "snapshot_id")
        return await self.go_on_from(self.snapshots.get(_snapshot_id(data)), timeout_s)

    async def go_on_from(self, snapshot: Snapshot, timeout_s: float | None = None) -> Observation:
        """Go on from a snapshot. After a step that could not be stopped, on a new instance.

        Raises:
            WireError: refused, or the author's code failed.
        """
        async with self._resetting:  # the next one would begin its episode before this one's has its handle
            if self.execution.user_code.stuck:
                await self._pool.replace(self)
            return await self._begun(
                observations.restore(self.execution, snapshot, timeout_s), self.execution.episode.id
            )

    async def fork(self, data: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Make a session that goes on from a snapshot, or from here; gives what the answer of a fork frame says.

        Raises:
            WireError: refused, there is no room, or the author's code failed.
        """
        _refuse_unknown(data, "snapshot_id", "session_id", "session_token")
        credential = None
        if "session_id" in data or "session_token" in data:
            credential = Credential.of(_text(data, "session_id"), _text(data, "session_token"))
        if data.get("snapshot_id") is not None:
            snapshot = self.snapshots.get(_snapshot_id(data))
        else:
            await self._renew()
            snapshot = await self.execution.snapshot(timeout_s=timeout_s)
        forked = await self._pool.fork(self, snapshot, credential, timeout_s)
        return {"session_id": forked.id, "episode_id": forked.execution.episode.id, "mcp_url": forked.mcp_url}

    def drop_snapshot(self, data: Mapping[str, Any]) -> bool:
        """Let go of the snapshot that the ``data`` of a frame names; whether it was there.

        Raises:
            InvalidMessage: it names none.
        """
        _refuse_unknown(data, "snapshot_id")
        return self.snapshots.drop(_snapshot_id(data))

    @property
    def mcp_url(self) -> str | None:
        """Where an agent acts on its episode."""
        return None if self.handle is None else f"{self.base_url}/episodes/{self.handle.value}/mcp"

    async def step(self, data: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Step with the ``data`` of a step frame; gives that of the observation's frame.

        Raises:
            WireError: refused, or the author's code failed.
        """
        call, execution = self.call_of(data, timeout_s), self.execution
        if call is not None:
            return observations.data_of(execution, await call)
        action = self._pool.actions.decode(dict(data))
        await self._renew()
        return observation_data(await observations.step(self.execution, action, plane=_CONTROL, timeout_s=timeout_s))

    def call_of(self, data: dict[str, Any], timeout_s: float | None) -> Coroutine[Any, Any, StepRecord] | None:
        """The step with the ``data`` of a step frame, if that is a plain tool call; else `step` is to take it.

        Raises:
            WireError: when it is awaited: refused, or the author's code failed.
        """
        if len(data) != 3 or data.get("type") != "call_tool" or self.execution.user_code.stuck:
            return None
        name, arguments = data.get("tool_name"), data.get("arguments")
        if type(name) is not str or type(arguments) is not dict:
            return None
        return self.execution.call_tool(name, arguments, plane=_CONTROL, timeout_s=timeout_s)

    async def call_tool(self, name: str, arguments: dict[str, Any], timeout_s: float | None = None) -> StepRecord:
        """The step that calls a tool, as it was recorded.

        Raises:
            WireError: refused, or the author's code failed.
        """
        await self._renew()
        return await self.execution.call_tool(name, arguments, plane=Plane.CONTROL, timeout_s=timeout_s)

    async def end(self, data: Mapping[str, Any]) -> Observation:
        """End the episode with the ``data`` of an end frame.

        Raises:
            WireError: refused, or judging the end failed.
        """
        truncated, reason = ending_of(data)
        await self.execution.end(truncated=truncated, reason=reason)
        return observations.latest(self.execution)

    async def state(self, timeout_s: float | None = None) -> State:
        """The environment's state.

        Raises:
            WireError: the author's code failed.
        """
        await self._renew()
        return await self.execution.read_state(timeout_s=timeout_s)

    async def _begun(self, beginning: Awaitable[Observation], before: str | None) -> Observation:
        """What begins an episode, with its address. If it is refused, the episode before keeps its own.

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
            await self.execution.sink.written(before)
        self._mint(observation)
        return observation

    def _mint(self, observation: Observation) -> None:
        """A handle for the episode that ``observation`` begins."""
        if self.closing is not None:
            raise SessionLost("the session was closed")
        self.handle = self._pool.handles.mint(self.execution)
        observation.info["mcp_url"] = self.mcp_url

    async def _renew(self) -> None:
        """After a reset that could not be stopped there is no episode yet: what comes next is for a new instance."""
        if self.execution.user_code.stuck and self.execution.episode.state is EpisodeState.NEW:
            await self._pool.replace(self)


def _snapshot_id(data: Mapping[str, Any]) -> str:
    snapshot_id = _text(data, "snapshot_id")
    if snapshot_id is None:
        raise InvalidMessage("snapshot_id is needed", errors=[_fault("snapshot_id", "Field required")])
    return snapshot_id


def _text(data: Mapping[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidMessage(f"{name} is a string", errors=[_fault(name, "not a string")])


def _refuse_unknown(data: Mapping[str, Any], *known: str) -> None:
    unknown = sorted(data.keys() - set(known))
    if unknown:
        raise InvalidMessage(
            f"unknown field: {', '.join(name[:60] for name in unknown[:10])}",
            errors=[_fault(name[:60], "Extra inputs are not permitted") for name in unknown[:10]],
        )


def _fault(name: str, message: str) -> dict[str, Any]:
    return {"loc": ["data", name], "msg": message, "type": "value_error"}
