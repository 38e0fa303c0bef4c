"""The client that rolls out episodes on an environment server over ``/ws``."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel, ValidationError

from .connection.addresses import Servers, without_password
from .connection.handshake import ConnectionOptions, headers_with_token
from .connection.http import fetch_from
from .connection.resume import Journal, ResumableSession, jittered
from .errors import CapacityReached, InvalidMessage, ListingFailed, SessionLost
from .launched import Instances, Launched, provider_named
from .rows import PAGE, READING, Rows
from .sync import SyncEnvClient
from .task_client import TaskClient
from .types.actions import Action, ListToolsAction
from .types.models import build_models
from .types.observations import AnyObservation, CallToolObservation, ListToolsObservation, Observation
from .types.records import StepResult, Trajectory
from .types.server import ServerCapacityStatus, SessionInfo
from .types.snapshots import SnapshotRef
from .types.starts import Recorded, Start
from .types.state import State
from .types.tasks import Task
from .types.tools import Tool
from .types.type_arguments import type_arguments
from .types.values import revive, to_plain, without_computed
from .wire.faults import describe_faults, faults
from .wire.protocol import (
    FrameType,
    Reply,
    encode_action,
    encode_call,
    parse_observation,
)

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    ActT = TypeVar("ActT", default=Action | Mapping[str, Any])
    ObsT = TypeVar("ObsT", default=Observation)
    StateT = TypeVar("StateT", default=State)
else:
    from typing import TypeVar

    ActT = TypeVar("ActT")
    ObsT = TypeVar("ObsT")
    StateT = TypeVar("StateT")

_BEGUN_AGAIN = 3
"""How often an episode is begun again whose session is lost before it has begun."""

_REPLY_MARGIN_S = 30.0
_LONGEST_WAIT_S = 60.0


class EnvClient(Generic[ActT, ObsT, StateT]):
    """A client of one environment session, async first; `sync` gives the blocking form.

    One client is one session with its own environment instance. Calls from several tasks run one at a time, in the
    order in which they were made. A caller that is cancelled while it waits for its reply loses the session, because
    the outcome of the message is unknown.

    Typing: subclass and override ``_step_payload``, ``_parse_result``, ``_parse_state``, or name the classes as
    ``EnvClient[MyAction, MyObservation, MyState](url)``. Without either, tool observations are `CallToolObservation`
    and `ListToolsObservation`, others `AnyObservation`, states `State`.

    Attributes:
        mcp_url: the address at which an agent acts on the running episode; None before the first reset.

    Args:
        base_url: ``http(s)://`` or ``ws(s)://`` address of the server. Several, or the `Path` of a file that has one in
            each line: servers that share a store of durable sessions. The client then resumes, at another server if its
            own does not answer.
        connect_timeout_s: seconds to connect, and to close.
        message_timeout_s: seconds to wait for a reply; more than the server's step deadline (300 by default), so that
            the server, which knows the outcome, times out first.
        ping_interval_s, ping_timeout_s: seconds between keep-alive pings and to wait for their pongs; None: no pings.
        max_message_bytes: the largest frame to accept.
        headers: extra HTTP headers of the handshake.
        token: the server's control token. None: the one in the environment variable ``MCPENV_CONTROL_TOKEN``, unless
            ``headers`` have ``Authorization`` or ``MCPENV_CONTROL_TOKEN_HOSTS`` names other hosts only.
        resume: reconnect automatically to a session after its socket was lost, and ask for the outcome of the message;
            the server must allow it (``--resume-grace-s``). No message runs twice.
        max_resumes: maximum tries to send one message again, after pauses that grow to 2 s: the default of 20 outlasts
            half a minute without a server.
        capacity_timeout_s: seconds for which `reset` retries, with growing random pauses, while all sessions of the
            server are in use.

    Raises (all methods):
        ConnectionFailed: no connection could be made.
        SessionLost: the connection ended, a reply did not come in time, or an earlier call lost the session. Only
            `reset` or `connect` begin a new session, because you asked for one.
        WireError: the server refused; one class per code, see `mcpenv_client.errors`.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | Path,
        *,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 330.0,
        ping_interval_s: float | None = 20.0,
        ping_timeout_s: float | None = 20.0,
        max_message_bytes: int = 100 * 1024 * 1024,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        resume: bool = False,
        max_resumes: int = 20,
        capacity_timeout_s: float = 0.0,
    ) -> None:
        build_models()
        servers = Servers(base_url)
        options = ConnectionOptions(
            connect_timeout_s,
            message_timeout_s,
            ping_interval_s,
            ping_timeout_s,
            max_message_bytes,
            headers_with_token(servers.current, headers or {}, token),
        )
        self._session = ResumableSession(servers, options, resume=resume or servers.several, max_resumes=max_resumes)
        self._capacity_timeout_s, self._message_timeout_s = capacity_timeout_s, message_timeout_s
        self._fetch = functools.partial(fetch_from, servers, options)
        self._tasks = TaskClient(self._fetch)
        self.mcp_url: str | None = None
        self._classes: tuple[type[Observation], type[BaseModel]] | None = None

    @property
    def base_url(self) -> str:
        """The ``http(s)://`` address of the server."""
        return self._session.servers.current

    # -- with a server of its own

    @classmethod
    def from_provider(cls, provider: Instances, **client_options: Any) -> Launched[Self]:
        """Return a context manager that starts a server, connects a client to it, and ends both.

        ``async with EnvClient.from_provider(LocalProvider(".")) as env`` gives the client; with ``.sync()`` after the
        call, ``with`` gives its blocking form.

        Args:
            provider: a provider, or a pool of its instances. `mcpenv_client.launched.provider_named` finds the class of
                one by its name.
            client_options: options of the client, such as ``message_timeout_s``.

        Raises (at the beginning of the block):
            ProviderUnavailable: something is missing; nothing was started.
            InstanceFailed: the server did not start. The error quotes its output.
        """
        own = client_options.pop("headers", None) or {}
        return Launched(
            provider, lambda instance: cls(instance.url, headers={**own, **instance.headers}, **client_options)
        )

    @classmethod
    def from_docker_image(cls, image: str, **options: Any) -> Launched[Self]:
        """Return `from_provider` of a container of an image, on this machine.

        Args:
            image: the image, such as ``mcpenv build`` makes.
            options: options of `DockerProvider`.
        """
        return cls.from_provider(provider_named("docker")(image, **options))

    @classmethod
    def from_hub(cls, repository: str, **options: Any) -> Launched[Self]:
        """Return `from_provider` of a container of a Docker Space of Hugging Face, on this machine.

        The image contains third-party code. The container has network access, but no access to this machine's files.

        Args:
            repository: the Space, ``OWNER/NAME``.
            options: options of `DockerProvider`.
        """
        return cls.from_provider(provider_named("hub")(repository, **options))

    # -- the session

    async def connect(self) -> None:
        """Open the session. Do nothing if it is open. After a loss, open a new session."""
        await self._session.connect()

    async def close(self) -> None:
        """End the session and close the socket; a running call raises `SessionLost`. Safe to call twice."""
        await self._session.close()

    def go_on_at(self, servers: Callable[[], Sequence[str]], journal: Journal | None = None) -> None:
        """Resume the session, which is not open yet, at others of some servers that share their durable sessions.

        Args:
            servers: returns their addresses, with that of this client's server first.
            journal: keeps the messages, so that another process can go on; None: no other process will.
        """
        self._session.go_on_at(Servers(servers), journal)

    def abandon(self) -> None:
        """Drop the connection at once, where nothing can be awaited any more. The server ends the session as lost."""
        self._session.abandon()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def sync(self) -> SyncEnvClient[ObsT, StateT]:
        """Return the blocking form of this client, for the same session. Use only one of the two forms."""
        return SyncEnvClient(self)

    # -- the episode

    async def reset(
        self, seed: int | None = None, episode_id: str | None = None, *, timeout_s: float | None = None, **options: Any
    ) -> StepResult[ObsT]:
        """Begin an episode.

        Args:
            seed: for reproducible episodes.
            episode_id: an id for the episode; by default the server generates one.
            timeout_s: seconds to wait for the reply, instead of ``message_timeout_s``.
            options: the environment's own reset options; unknown ones are refused. To begin a task: ``task=`` (a
                `Task`, or the id of one of the environment's tasks), or ``split=`` and ``index=``.
        """
        data = to_plain(options, "options")
        if seed is not None:
            data["seed"] = seed
        if episode_id is not None:
            data["episode_id"] = episode_id
        return await self._begin(FrameType.RESET, data, timeout_s)

    async def _begin(self, kind: FrameType, data: dict[str, Any], wait_s: float | None) -> StepResult[ObsT]:
        """Begin an episode at a server that has room. If its session is lost meanwhile, begin it in a new one."""
        began, pause_s, others = time.monotonic(), 0.0, len(self._session.servers)
        again = _BEGUN_AGAIN if self._session.resumes else 0
        while True:
            try:
                await self.connect()
                request_id = self._session.request_id(kind) if kind is FrameType.BRANCH else None
                reply = await self._session.exchange(kind, data, "observation", wait_s=wait_s, request_id=request_id)
            except SessionLost:
                if not again or self._session.interrupted:
                    raise  # no server was there to tell that it does not have the session
                again -= 1
                self._session.abandon()  # it had no episode yet, or it cannot be continued
            except CapacityReached as full:
                self._session.servers.next()
                if (others := others - 1) > 0:
                    continue
                pause_s = jittered(max(pause_s, full.retry_after_s or 0.0))
                if time.monotonic() + pause_s - began > self._capacity_timeout_s:
                    raise
                await asyncio.sleep(pause_s)
            else:
                return self._began(reply)

    async def step(
        self, action: ActT, *, timeout_s: float | None = None, request_id: str | None = None
    ) -> StepResult[ObsT]:
        """Take one step. A tool's failure is data (``result.error``); only refusals raise.

        Args:
            action: an `Action`, or a dict in the form of the wire.
            timeout_s: deadline of the step at the server, in seconds; never longer than the server's own.
            request_id: a name for this step, by which `cancel` finds it. Used twice, the step runs once.

        Raises:
            EpisodeDone: the episode is over.
        """
        return await self._step(self._step_payload(action), timeout_s, request_id)

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        request_id: str | None = None,
    ) -> StepResult[ObsT]:
        """Call one tool, which is a step."""
        return await self._step(encode_call(name, arguments or {}), timeout_s, request_id)

    async def end(
        self, *, truncated: bool = False, reason: str | None = None, timeout_s: float | None = None
    ) -> StepResult[ObsT]:
        """End the episode, because the agent has stopped. Rubric and verifier score its final state.

        Args:
            truncated: True if a limit of the orchestrator ended it (turns, tokens, time); otherwise it is terminated.
            reason: for the record and ``info["reason"]``.
            timeout_s: seconds to wait for the reply, instead of ``message_timeout_s``.

        Returns:
            The reward of the end, and ``info["return"]``, the sum. If the episode was already over, the last
            observation again.
        """
        data: dict[str, Any] = {"truncated": truncated}
        if reason is not None:
            data["reason"] = reason
        return self._parse_result(
            (await self._session.exchange(FrameType.END, data, "observation", wait_s=timeout_s)).data
        )

    async def wait(self, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Wait until the episode is over, for example while an agent acts on it at ``info["mcp_url"]``.

        It holds no lock: other calls can run meanwhile.

        Args:
            timeout_s: maximum seconds to wait; None: no limit.

        Returns:
            The last observation, with its reward; ``info["return"]`` is the sum. ``done`` is False at the timeout.

        Raises:
            SessionLost: a reset began another episode, or the session ended.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _LONGEST_WAIT_S if end is None else max(end - time.monotonic(), 0.001)
            data = {"timeout_s": min(left_s, _LONGEST_WAIT_S)}
            reply = await self._session.exchange(
                FrameType.WAIT, data, "observation", wait_s=_LONGEST_WAIT_S + _REPLY_MARGIN_S
            )
            result = self._parse_result(reply.data)
            if result.done or (end is not None and time.monotonic() >= end):
                return result

    async def trajectory(self) -> Trajectory:
        """Return the record of the running or last episode, with an agent's steps.

        It is also answered during a step.
        """
        return Trajectory.from_plain((await self._session.exchange(FrameType.TRAJECTORY, {}, "trajectory")).data)

    async def cancel(self, request_id: str) -> bool:
        """Cancel the step with this request id, which raises `OperationCancelled`. Return True if it was running."""
        reply = await self._session.exchange(FrameType.CANCEL, {"request_id": request_id}, "cancel")
        return bool(reply.data.get("cancelled"))

    # -- snapshots

    async def snapshot(self, *, timeout_s: float | None = None) -> SnapshotRef:
        """Take a snapshot of the episode, between two steps. The state stays on the server.

        Args:
            timeout_s: deadline at the server, in seconds.

        Raises:
            NotSupported: the environment cannot be saved; the text has the remedy for its author.
            CapacityReached: the session has its maximum of snapshots; `drop_snapshot` frees one.
        """
        reply = await self._ask(FrameType.SNAPSHOT, {}, "snapshot", timeout_s)
        with _read_as("snapshot", SnapshotRef):
            return SnapshotRef.model_validate(reply.data)

    async def restore(self, snapshot: SnapshotRef | str, *, timeout_s: float | None = None) -> StepResult[ObsT]:
        """Continue from a snapshot, in a new episode with the same steps so far. Return the last observation.

        ``info`` has the new ``episode_id`` and ``mcp_url``; the previous ``mcp_url`` leads to an ended episode.

        Args:
            snapshot: of this session, or of the session that it was forked from.
            timeout_s: deadline at the server, in seconds.

        Raises:
            InvalidMessage: the snapshot does not exist, or no longer exists.
            ExecutionError: the environment failed to restore its state; the instance is new, and must be reset or
                restored.
        """
        data = {"snapshot_id": _id_of(snapshot)}
        return self._began(await self._ask(FrameType.RESTORE, data, "observation", timeout_s))

    async def fork(self, snapshot: SnapshotRef | str | None = None, *, timeout_s: float | None = None) -> Self:
        """Return a connected client of another session that continues from a snapshot, or from here. Close it too.

        Its ``mcp_url`` is the address of its episode for agents.

        Args:
            snapshot: of this session, or of the session that it was forked from; None: the present state of the
                episode.
            timeout_s: deadline of the snapshot and of the restoring at the server, in seconds, each.

        Raises:
            NotSupported: the environment cannot be saved, or the server has one session at a time.
            CapacityReached: all sessions of the server are in use; this session is not lost.
        """
        data: dict[str, Any] = {} if snapshot is None else {"snapshot_id": _id_of(snapshot)}
        credential = self._session.new_credential()
        if credential is not None:
            data |= {"session_id": credential.session_id, "session_token": credential.token}
        reply = await self._ask(FrameType.FORK, data, "fork", timeout_s)
        session_id, mcp_url = reply.data.get("session_id"), reply.data.get("mcp_url")
        if not isinstance(session_id, str) or not isinstance(mcp_url, str):
            raise InvalidMessage("the server answered without the session of the fork")
        forked = copy.copy(self)
        forked._session, forked.mcp_url = await self._session.joined(session_id, credential), mcp_url
        return forked

    async def branch(
        self, record: Trajectory | Recorded | Start | str, step: int, *, timeout_s: float | None = None
    ) -> StepResult[ObsT]:
        """Begin an episode that continues a recorded one after a step, and return the observation of that step.

        The server resets the environment as recorded, runs the calls up to the step, and compares every result with the
        record. Calls that act on the outside act there again. ``info`` has the ``episode_id`` and ``mcp_url``, as after
        a reset. `fork` then opens siblings without running the calls again, where the environment can be saved.

        Args:
            record: a recorded episode, its trajectory, or the id of an episode in the server's own record.
            step: the number of steps that both have in common; 0: none, only the reset.
            timeout_s: seconds to wait for the reply; None: ``message_timeout_s``, and twice the time that the recorded
                steps took.

        Raises:
            InvalidMessage: a result differs from the record; ``errors`` has the first difference. There is then no
                running episode.
            ValueError: the record has no such step, or is over after it.
        """
        start = Start(record, step)
        wait_s = self._message_timeout_s + 2 * start.took_s if timeout_s is None else timeout_s
        return await self._begin(FrameType.BRANCH, start.to_wire(), wait_s)

    async def drop_snapshot(self, snapshot: SnapshotRef | str) -> bool:
        """Delete a snapshot on the server. Return True if it existed."""
        reply = await self._ask(FrameType.DROP_SNAPSHOT, {"snapshot_id": _id_of(snapshot)}, "drop_snapshot", None)
        return bool(reply.data.get("dropped"))

    async def list_tools(self) -> list[Tool]:
        """Return the tools of this session's environment. Listing is not a step.

        Raises:
            ListingFailed: the server answered with something other than a listing.
        """
        reply = await self._session.exchange_once(FrameType.STEP, encode_action(ListToolsAction()), "observation")
        observation = reply.data.get("observation")
        if not isinstance(observation, dict) or not isinstance(observation.get("tools"), list):
            raise ListingFailed(self.base_url, "the reply has no tools")
        try:
            return [Tool.model_validate(tool) for tool in observation["tools"]]
        except ValidationError as error:
            raise ListingFailed(self.base_url, describe_faults(error)) from error

    async def state(self) -> StateT:
        """Return the environment's state."""
        return self._parse_state((await self._session.exchange_once(FrameType.STATE, None, "state")).data)

    # -- the server

    async def metadata(self) -> dict[str, Any]:
        """Return ``GET /metadata``: name, version, mode, protocol and more."""
        return await self._described("/metadata")

    async def schema(self) -> dict[str, Any]:
        """Return ``GET /schema``: JSON Schemas of actions, observations, state, tools and reset options."""
        return await self._described("/schema")

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions of the server, oldest first; ``headers`` must have its control token if it requires one.

        Raises:
            ConnectionFailed: the server does not answer, or has no such route because it is in production mode.
            InvalidMessage: the answer does not fit.
        """
        listed = (await self._described("/sessions")).get("sessions")
        if not isinstance(listed, list):
            raise InvalidMessage("the server answered without its sessions")
        with _read_as("session", SessionInfo):
            return [SessionInfo.model_validate(each) for each in listed]

    async def capacity(self) -> ServerCapacityStatus:
        """Return the present and maximum numbers of the server's sessions.

        Raises:
            InvalidMessage: as `sessions`.
        """
        with _read_as("capacity", ServerCapacityStatus):
            return ServerCapacityStatus.model_validate(await self._described("/capacity"))

    # -- its tasks

    async def splits(self) -> list[str]:
        """Return the splits of the environment's tasks.

        Raises (this and the next four):
            InvalidMessage: the environment has no tasks, or no such split or index.
        """
        return await self._tasks.splits()

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split."""
        return await self._tasks.size(split)

    async def get_task(self, split: str, index: int) -> Task:
        """Return the task at a 0-based index of a split, for ``reset(task=...)``. It includes its answers."""
        return await self._tasks.get(split, index)

    async def get_tasks(self, split: str, start: int = 0, stop: int | None = None) -> list[Task]:
        """Return the tasks of a split from ``start`` to ``stop``, exclusive; None: to the last."""
        return await self._tasks.range(split, start, stop)

    async def rows(self, split: str) -> Rows:
        """Return a split as a trainer's dataset, with a row for each task. The first `PAGE` rows are read here.

        The others are read when they are used. That blocks the thread; in a coroutine use ``async for``.
        """

        async def ask(start: int, stop: int) -> list[Task]:
            if stop == start + 1:  # one request; a range needs the size of the split, too
                return [await self.get_task(split, start)]
            return await self.get_tasks(split, start, stop)

        def read(start: int, stop: int) -> list[Task]:
            return READING.call(lambda: ask(start, stop))

        rows = Rows(range(await self.num_tasks(split)), read, split)
        async for _ in rows[:PAGE]:
            pass
        return rows

    # -- methods to override in a typed client

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """Return the ``data`` of a step frame for ``action``."""
        if not isinstance(action, Action | Mapping):
            raise TypeError(f"an action is an Action or a dict, not a {type(action).__name__}")
        return encode_action(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """Return the `StepResult` for the ``data`` of an observation frame."""
        observation: Any = self._parse_observation(payload)
        return StepResult(
            observation=observation,
            reward=observation.reward,
            terminated=observation.terminated,
            truncated=observation.truncated,
            done=observation.done,
            info=observation.info,
        )

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """Return the state for the ``data`` of a state frame."""
        cls: Any = self._types()[1]
        with _read_as("state", cls):
            state: StateT = revive(cls, without_computed(cls, payload))
        return state

    def _parse_observation(self, payload: dict[str, Any]) -> Observation:
        body = payload.get("observation")
        if not isinstance(body, dict):
            raise InvalidMessage("the server answered without an observation")
        own = self._types()[0]
        cls = _class_for(body, own)
        other: type[Observation] | None = None
        if not body.keys() - {"metadata"}:
            other = Observation  # the answer to a reset without its own observation, whatever steps return
        elif own is AnyObservation and cls is not AnyObservation:
            other = AnyObservation  # the same names, as another environment defines them
        if other is not None:
            try:
                return parse_observation(payload, cls)
            except ValidationError:
                cls = other
        with _read_as("observation", cls):
            return parse_observation(payload, cls)

    def _types(self) -> tuple[type[Observation], type[BaseModel]]:
        """The classes of observations and states, named by ``EnvClient[...]`` or by a subclass of it."""
        if self._classes is None:
            _, observation, state = type_arguments(self, EnvClient)
            self._classes = (
                _subclass(observation, Observation, AnyObservation),
                _subclass(state, BaseModel, State),
            )
        return self._classes

    # -- internals

    def _began(self, reply: Reply) -> StepResult[ObsT]:
        """Return the result of a reset or restore."""
        info = reply.data.get("info")
        self.mcp_url = info.get("mcp_url") if isinstance(info, dict) else None
        return self._parse_result(reply.data)

    async def _step(self, payload: dict[str, Any], timeout_s: float | None, request_id: str | None) -> StepResult[ObsT]:
        wait_s = None if timeout_s is None else timeout_s + _REPLY_MARGIN_S
        reply = await self._session.exchange(
            FrameType.STEP, payload, "observation", timeout_s=timeout_s, wait_s=wait_s, request_id=request_id
        )
        return self._parse_result(reply.data)

    async def _ask(self, kind: FrameType, data: dict[str, Any], answer: str, timeout_s: float | None) -> Reply:
        """Send a frame with a new request id."""
        return await self._session.exchange(
            kind,
            data,
            answer,
            timeout_s=timeout_s,
            wait_s=None if timeout_s is None else 2 * timeout_s + _REPLY_MARGIN_S,
            request_id=self._session.request_id(kind),
        )

    async def _described(self, path: str) -> dict[str, Any]:
        body = await self._fetch(path)
        if not isinstance(body, dict):
            raise InvalidMessage(f"{without_password(self.base_url + path)} answered no JSON object")
        return body


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """A client without classes: actions, observations and states are dicts in the form of the wire."""

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[dict[str, Any]]:
        observation = payload.get("observation")
        if not isinstance(observation, dict):
            raise InvalidMessage("the server answered without an observation")
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            terminated=bool(payload.get("terminated")),
            truncated=bool(payload.get("truncated")),
            done=bool(payload.get("done")),
            info=payload.get("info") or {},
        )

    def _parse_state(self, payload: dict[str, Any]) -> dict[str, Any]:
        return payload


def _id_of(snapshot: SnapshotRef | str) -> str:
    return snapshot if isinstance(snapshot, str) else snapshot.snapshot_id


def _class_for(body: dict[str, Any], own: type[Observation]) -> type[Observation]:
    """The class of an observation.

    It is the client's own, unless the observation is a tool's or a listing and that class is not.
    """
    fields = own.__pydantic_fields__  # the value of `model_fields`, without its descriptor
    if "tool_name" in body and ("result" in body or "error" in body) and "tool_name" not in fields:
        return CallToolObservation
    if isinstance(body.get("tools"), list) and "tools" not in fields:
        return ListToolsObservation
    return own


def _subclass(given: Any, base: type[Any], default: type[Any]) -> type[Any]:
    """The class given for a type parameter; ``default`` if none was.

    Raises:
        TypeError: it cannot be read from JSON here.
    """
    if given is Any or given is base or isinstance(given, TypeVar):
        return default
    if isinstance(given, type) and issubclass(given, base):
        return given
    raise TypeError(
        f"EnvClient[...]: {given!r} is no subclass of {base.__name__}; "
        "GenericEnvClient gives dicts, _parse_result and _parse_state anything else"
    )


@contextlib.contextmanager
def _read_as(what: str, cls: type[Any]) -> Iterator[None]:
    """Raise `InvalidMessage` if a part of an answer does not fit a class."""
    try:
        yield
    except ValidationError as error:
        raise InvalidMessage(
            f"the {what} is no {cls.__name__}: {describe_faults(error)}", errors=faults(error)
        ) from error
