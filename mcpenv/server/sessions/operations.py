"""Operations: the requests that an orchestrator makes of a session, one class each, and the registry of their frames.

An operation has the frame that asks for it, `from_wire` for the ``data`` of that frame, `run`, and the reply: its type
and `reply_data`, which encodes what `run` returned. ``/ws``, HTTP and the other wires all make and run these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mcpenv import tracing
from mcpenv.execution.execution import Execution
from mcpenv.failures import wire_error
from mcpenv.tasks.assignment import Wanted
from mcpenv_client.errors import InvalidMessage, OperationCancelled, WireError
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane, ToolCalled, Trajectory, call_data
from mcpenv_client.types.state import State
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import Frame, FrameType, encode_reply, ending_of, observation_data, timeout_of

from .credential import Credential
from .idempotency import Answer, is_final

if TYPE_CHECKING:
    from .session import Session

A_FRAME = "a frame"
"""The name of the request in logs of its failure."""


class Operation(ABC):
    """A request of an orchestrator.

    Attributes:
        frame: the frame that asks for it.
        reply: the type of the frame that answers it.
        stage: the stage in the status of a cancelled one; None if it belongs to no stage.
        idempotent: True if it changes nothing, so that it may run again under the same request id.
        brief: True if an urgent one has a short reply, which need not wait until longer ones are sent.
    """

    __slots__ = ()

    frame: ClassVar[FrameType]
    reply: ClassVar[str] = "observation"
    stage: ClassVar[Stage | None] = None
    idempotent: ClassVar[bool] = False
    brief: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Operation:
        """Return the operation for the ``data`` of its frame.

        Args:
            session: the session that it is for. A frame is decoded when its turn comes, an urgent one as it arrives.
            timeout_s: seconds that the environment's code may take; None for its own limit.

        Raises:
            InvalidMessage: with locations in ``errors``.
        """

    @abstractmethod
    async def run(self, session: Session) -> Any:
        """Run the operation. Return its result, for `reply_data`.

        Raises:
            WireError: the operation is refused, or user code failed.
        """

    @staticmethod
    def reply_data(result: Any, /) -> dict[str, Any]:
        """Return the ``data`` of the reply: plain JSON data. The default is for observations.

        Raises:
            NotSerializable: naming the field.
        """
        return observation_data(result)


@dataclass(slots=True)
class Reset(Operation):
    """Begin an episode.

    Attributes:
        wanted: the requested task and the options of the environment's own reset.
        timeout_s: seconds that the environment's code may take; None for its own limit. The same in all operations.
    """

    frame = FrameType.RESET
    stage = Stage.RESET

    seed: int | None
    episode_id: str | None
    wanted: Wanted
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Reset:
        """Decode a reset."""
        env = session.execution.env
        return cls(*Wanted.from_wire(data, type(env).author_hooks.options, type(env).tasks), timeout_s)

    async def run(self, session: Session) -> Observation:
        """Begin an episode; on a new instance if the instance still runs a step that could not be stopped."""
        return await session.reset(self.seed, self.episode_id, self.wanted, self.timeout_s)


_CALL_KEYS = frozenset({"type", "tool_name", "arguments"})
"""The keys of a call that needs no validation: what most clients send."""


class Step(Operation):
    """Take a step: `CallTool` or `Act`."""

    __slots__ = ()

    frame = FrameType.STEP
    stage = Stage.TOOL

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Step:
        """Decode a step."""
        name, arguments = data.get("tool_name"), data.get("arguments")
        if (
            data.get("type") == "call_tool"
            and isinstance(name, str)
            and isinstance(arguments, dict)
            and data.keys() <= _CALL_KEYS
        ):
            return CallTool(name, arguments, timeout_s)
        action = session.actions.parse(dict(data))
        if isinstance(action, CallToolAction):
            return CallTool(action.tool_name, action.arguments, timeout_s)
        return Act(action, timeout_s)


@dataclass(slots=True)
class CallTool(Step):
    """Call a tool, which is one step."""

    name: str
    arguments: dict[str, Any]
    timeout_s: float | None = None

    async def run(self, session: Session) -> ToolCalled:
        """Call the tool."""
        if session.execution.user_code.abandoned:
            await session.renew()
        execution, limit_s = session.execution, self.timeout_s
        record = await execution.call_tool(self.name, self.arguments, plane=Plane.CONTROL, timeout_s=limit_s)
        return ToolCalled(record, execution.episode.info_of(record))

    reply_data = staticmethod(call_data)


@dataclass(slots=True)
class Act(Step):
    """List the tools, or take an action of the environment's own."""

    action: Action
    timeout_s: float | None = None

    async def run(self, session: Session) -> Observation:
        """Take the action."""
        await session.renew()
        return await session.execution.step(self.action, plane=Plane.CONTROL, timeout_s=self.timeout_s)


@dataclass(slots=True)
class End(Operation):
    """End the episode."""

    frame = FrameType.END
    stage = Stage.SCORE

    truncated: bool = False
    reason: str | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> End:
        """Decode an end."""
        return cls(*ending_of(data))

    async def run(self, session: Session) -> Observation:
        """End the episode; return its last observation."""
        return await session.execution.end(truncated=self.truncated, reason=self.reason)


@dataclass(slots=True)
class ReadState(Operation):
    """Read the environment's state."""

    frame = FrameType.STATE
    reply = "state"
    idempotent = True

    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> ReadState:
        """Decode a request for the state, which has no data of its own."""
        return cls(timeout_s)

    async def run(self, session: Session) -> State:
        """Read the state."""
        await session.renew()
        return await session.execution.read_state(timeout_s=self.timeout_s)

    @staticmethod
    def reply_data(result: State) -> dict[str, Any]:
        """Encode the state."""
        state: dict[str, Any] = to_plain(result, "state")
        return state


class SnapshotTaken(NamedTuple):
    """The result of `TakeSnapshot`.

    Attributes:
        step: the number of steps that the episode had.
        bytes: the size that counts towards the session's limit.
    """

    snapshot_id: str
    episode_id: str
    step: int
    bytes: int


@dataclass(slots=True)
class TakeSnapshot(Operation):
    """Keep the episode as it stands."""

    frame = FrameType.SNAPSHOT
    reply = "snapshot"

    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> TakeSnapshot:
        """Decode a snapshot."""
        _refuse_unknown(data)
        return cls(timeout_s)

    async def run(self, session: Session) -> SnapshotTaken:
        """Take the snapshot, and keep it with the session."""
        session.snapshots.refuse_full()
        await session.renew()
        held = await session.execution.snapshot(timeout_s=self.timeout_s)
        return SnapshotTaken(session.snapshots.add(held), held.episode_id, held.step, held.bytes)

    reply_data = staticmethod(SnapshotTaken._asdict)


@dataclass(slots=True)
class Restore(Operation):
    """Continue from a snapshot."""

    frame = FrameType.RESTORE

    snapshot_id: str
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Restore:
        """Decode a restore."""
        _refuse_unknown(data, "snapshot_id")
        return cls(_snapshot_id(data), timeout_s)

    async def run(self, session: Session) -> Observation:
        """Restore the snapshot; return its last observation."""
        return await session.restore(session.snapshots.get(self.snapshot_id), self.timeout_s)


class Forked(NamedTuple):
    """The result of `Fork`: the new session and its episode."""

    session_id: str
    episode_id: str | None
    mcp_url: str | None


@dataclass(slots=True)
class Fork(Operation):
    """Open another session that continues from a snapshot.

    Attributes:
        snapshot_id: None to continue from the episode as it stands.
        credential: chosen by the client for the new session; None if the client will not resume it.
    """

    frame = FrameType.FORK
    reply = "fork"

    snapshot_id: str | None = None
    credential: Credential | None = None
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Fork:
        """Decode a fork."""
        _refuse_unknown(data, "snapshot_id", "session_id", "session_token")
        credential = None
        if "session_id" in data or "session_token" in data:
            credential = Credential.of(_text(data, "session_id"), _text(data, "session_token"))
        return cls(_text(data, "snapshot_id"), credential, timeout_s)

    async def run(self, session: Session) -> Forked:
        """Open the session."""
        if self.snapshot_id is not None:
            snapshot = session.snapshots.get(self.snapshot_id)
        else:
            await session.renew()
            snapshot = await session.execution.snapshot(timeout_s=self.timeout_s)
        forked = await session.fork(snapshot, self.credential, self.timeout_s)
        return Forked(forked.id, forked.execution.episode.id, forked.mcp_url)

    reply_data = staticmethod(Forked._asdict)


@dataclass(slots=True)
class DropSnapshot(Operation):
    """Delete a snapshot."""

    frame = FrameType.DROP_SNAPSHOT
    reply = "drop_snapshot"

    snapshot_id: str

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> DropSnapshot:
        """Decode a drop of a snapshot."""
        _refuse_unknown(data, "snapshot_id")
        return cls(_snapshot_id(data))

    async def run(self, session: Session) -> bool:
        """Delete the snapshot; return True if it existed."""
        return session.snapshots.drop(self.snapshot_id)

    reply_data = staticmethod(lambda existed: {"dropped": existed})


@dataclass(slots=True)
class Wait(Operation):
    """Wait for the end of an episode.

    Attributes:
        execution: the instance that ran the episode when the frame arrived.
        episode_id: the episode at that time; None before the first one.
        timeout_s: seconds to wait; None for no limit.
    """

    frame = FrameType.WAIT

    execution: Execution
    episode_id: str | None
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Wait:
        """Decode a wait. Its limit stands in its ``data``: the frame's own is for the environment's code."""
        execution = session.execution
        return cls(execution, execution.episode.id, timeout_of(data.get("timeout_s")))

    async def run(self, session: Session) -> Observation:
        """Wait; return the last observation."""
        await self.execution.wait(self.timeout_s, episode_id=self.episode_id)
        return self.execution.episode.latest()


@dataclass(slots=True)
class Cancel(Operation):
    """Cancel a request of this session.

    Attributes:
        request_id: the id of that request.
    """

    frame = FrameType.CANCEL
    reply = "cancel"
    brief = True

    request_id: str

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Cancel:
        """Decode a cancel."""
        request_id = data.get("request_id")
        if not isinstance(request_id, str):
            raise InvalidMessage("cancel needs data.request_id", errors=[_fault("request_id", "not a string")])
        return cls(request_id)

    async def run(self, session: Session) -> bool:
        """Cancel the request; return True if it was running."""
        running = session.replies.running(self.request_id)
        return running is not None and running.cancel()

    reply_data = staticmethod(lambda was_running: {"cancelled": was_running})


@dataclass(slots=True)
class ReadTrajectory(Operation):
    """Read the steps of the episode."""

    frame = FrameType.TRAJECTORY
    reply = "trajectory"

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> ReadTrajectory:
        """Decode a request for the trajectory, which has no data of its own."""
        return cls()

    async def run(self, session: Session) -> Trajectory:
        """Return the trajectory.

        Raises:
            InvalidMessage: there is no episode yet.
        """
        trajectory = session.execution.episode.trajectory
        if trajectory is None:
            raise InvalidMessage("there is no episode yet; reset first")
        return trajectory

    reply_data = staticmethod(lambda trajectory: trajectory.to_plain())


OPERATIONS: dict[FrameType, type[Operation]] = {
    operation.frame: operation
    for operation in (
        Reset, Step, End, ReadState, TakeSnapshot, Restore, Fork, DropSnapshot, Wait, Cancel, ReadTrajectory
    )
}  # fmt: skip
"""The operation of each frame. A server has a copy, `SessionPool.operations`, to which its extensions add their own."""


def operation_of(session: Session, frame: Frame) -> Operation:
    """Return the operation that a frame asks for.

    Raises:
        InvalidMessage: the data does not fit, with locations in ``errors``; or this server has no such operation.
    """
    operation = session.operations.get(frame.type)
    if operation is None:
        raise InvalidMessage(f"this server answers no {frame.type.value} frames: no extension of it does")
    return operation.from_wire(frame.data, session, frame.timeout_s)


async def answer(session: Session, frame: Frame) -> Answer:
    """Answer a frame with the reply of its operation, or with an error."""
    try:
        operation = operation_of(session, frame)
        result = await operation.run(session)
        return Answer(encode_reply(operation.reply, operation.reply_data(result), frame.request_id))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        refused = wire_error(error, A_FRAME)
        return Answer(error_text(refused, frame.request_id), final=is_final(refused), code=refused.code.value)


async def answer_traced(session: Session, frame: Frame) -> Answer:
    """Answer a frame in a span, a child of the one that the frame names."""
    with tracing.request(frame.type.value, frame.trace or {}) as span:
        span.set_attribute("mcpenv.session_id", session.label)
        answered = await answer(session, frame)
        if answered.code is not None:
            tracing.failed(span, answered.code)
        span.set_attribute("mcpenv.episode_id", session.execution.episode.id or "")
        return answered


def cancelled_answer(session: Session, frame: Frame) -> Answer:
    """Return the answer to a frame that a ``cancel`` ended."""
    status = Status(StatusCode.CANCELLED, session.operations[frame.type].stage, True).to_plain()
    refused = OperationCancelled(f"the {frame.type.value} was cancelled", status=status)
    return Answer(error_text(refused, frame.request_id))


def error_text(error: WireError, request_id: str | None) -> str:
    """Return the text of the frame that answers a request that was refused or failed."""
    return encode_reply("error", error.to_wire(), request_id)


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
