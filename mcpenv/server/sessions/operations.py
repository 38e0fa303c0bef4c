"""Operations: the requests that an orchestrator makes of a session, with typed arguments, and their results.

Every codec of the control plane decodes its own spelling to one of these, runs it with `Session`, and encodes the
result. A decoder (`from_wire`) takes the ``data`` of a frame, plain JSON data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpenv.execution.execution import Execution
from mcpenv.tasks import TaskSet
from mcpenv.tasks.assignment import Wanted
from mcpenv.tasks.reset_options import ResetOptions
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.state import State
from mcpenv_client.wire.protocol import ActionTypes, FrameType, ending_of, timeout_of

from .credential import Credential


@dataclass(frozen=True, slots=True)
class Accepted:
    """The types of an environment that decoding needs."""

    actions: ActionTypes
    reset_options: ResetOptions
    tasks: TaskSet | None


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin an episode.

    Attributes:
        wanted: the requested task and the options of the environment's own reset.
        timeout_s: seconds that the environment's code may take; None for its own limit. The same in all operations.
    """

    seed: int | None
    episode_id: str | None
    wanted: Wanted
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], accepted: Accepted, timeout_s: float | None = None) -> Reset:
        """Decode a reset.

        Raises:
            InvalidMessage: with locations in ``errors``. The same in all operations.
        """
        seed, episode_id, wanted = Wanted.from_wire(data, accepted.reset_options, accepted.tasks)
        return cls(seed, episode_id, wanted, timeout_s)


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool, which is one step."""

    name: str
    arguments: dict[str, Any]
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """List the tools, or take an action of the environment's own."""

    action: Action
    timeout_s: float | None = None


_CALL_KEYS = frozenset({"type", "tool_name", "arguments", "metadata"})


def decode_step(data: Mapping[str, Any], accepted: Accepted, timeout_s: float | None = None) -> CallTool | Act:
    """Return the operation for the ``data`` of a step.

    Raises:
        InvalidMessage: with locations in ``errors``.
    """
    if data.get("type") == "call_tool" and data.keys() <= _CALL_KEYS:
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, dict) and isinstance(data.get("metadata", {}), dict):
            return CallTool(name, arguments, timeout_s)
    action = accepted.actions.decode(dict(data))
    if isinstance(action, CallToolAction):
        return CallTool(action.tool_name, action.arguments, timeout_s)
    return Act(action, timeout_s)


@dataclass(frozen=True, slots=True)
class End:
    """End the episode."""

    truncated: bool = False
    reason: str | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> End:
        """Decode an end."""
        return cls(*ending_of(data))


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read the environment's state."""

    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the episode as it stands."""

    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], timeout_s: float | None = None) -> TakeSnapshot:
        """Decode a snapshot."""
        _refuse_unknown(data)
        return cls(timeout_s)


@dataclass(frozen=True, slots=True)
class Restore:
    """Continue from a snapshot."""

    snapshot_id: str
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], timeout_s: float | None = None) -> Restore:
        """Decode a restore."""
        _refuse_unknown(data, "snapshot_id")
        return cls(_snapshot_id(data), timeout_s)


@dataclass(frozen=True, slots=True)
class Fork:
    """Open another session that continues from a snapshot.

    Attributes:
        snapshot_id: None to continue from the episode as it stands.
        credential: chosen by the client for the new session; None if the client will not resume it.
    """

    snapshot_id: str | None = None
    credential: Credential | None = None
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], timeout_s: float | None = None) -> Fork:
        """Decode a fork."""
        _refuse_unknown(data, "snapshot_id", "session_id", "session_token")
        credential = None
        if "session_id" in data or "session_token" in data:
            credential = Credential.of(_text(data, "session_id"), _text(data, "session_token"))
        return cls(_text(data, "snapshot_id"), credential, timeout_s)


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """Delete a snapshot."""

    snapshot_id: str

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> DropSnapshot:
        """Decode a drop of a snapshot."""
        _refuse_unknown(data, "snapshot_id")
        return cls(_snapshot_id(data))


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the end of an episode.

    Attributes:
        execution: the instance that ran the episode when the request arrived.
        episode_id: the episode at that time; None before the first one.
        timeout_s: seconds to wait; None for no limit.
    """

    execution: Execution
    episode_id: str | None
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], execution: Execution, episode_id: str | None) -> Wait:
        """Decode a wait. The timeout stands in its ``data``: the frame's own timeout is for the environment's code."""
        return cls(execution, episode_id, timeout_of(data.get("timeout_s")))


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request of this session.

    Attributes:
        request_id: the id of that request.
    """

    request_id: str

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Cancel:
        """Decode a cancel."""
        request_id = data.get("request_id")
        if not isinstance(request_id, str):
            raise InvalidMessage(
                "cancel needs data.request_id",
                errors=[{"loc": ["data", "request_id"], "msg": "not a string", "type": "str"}],
            )
        return cls(request_id)


@dataclass(frozen=True, slots=True)
class ReadTrajectory:
    """Read the steps of the episode."""


Operation = (
    CallTool
    | Act
    | Reset
    | End
    | ReadState
    | TakeSnapshot
    | Restore
    | Fork
    | DropSnapshot
    | Wait
    | Cancel
    | ReadTrajectory
)


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The result of `CallTool`.

    Attributes:
        record: the step.
        info: the framework's part of its observation, plain JSON data.
    """

    record: StepRecord
    info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The result of `TakeSnapshot`.

    Attributes:
        step: the number of steps that the episode had.
        bytes: the size that counts towards the session's limit.
    """

    snapshot_id: str
    episode_id: str
    step: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Forked:
    """The result of `Fork`: the new session and its episode."""

    session_id: str
    episode_id: str | None
    mcp_url: str | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The result of `DropSnapshot`: True if the snapshot existed."""

    dropped: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of `Cancel`: True if the request was running."""

    cancelled: bool


Result = ToolCalled | Observation | State | Trajectory | SnapshotTaken | Forked | Dropped | Cancelled


def decode(kind: FrameType, data: Mapping[str, Any], accepted: Accepted, timeout_s: float | None = None) -> Operation:
    """Return the operation that a frame asks for. A wait is decoded with `Wait.from_wire`.

    Raises:
        InvalidMessage: with locations in ``errors``.
    """
    match kind:
        case FrameType.RESET:
            return Reset.from_wire(data, accepted, timeout_s)
        case FrameType.STEP:
            return decode_step(data, accepted, timeout_s)
        case FrameType.END:
            return End.from_wire(data)
        case FrameType.STATE:
            return ReadState(timeout_s)
        case FrameType.SNAPSHOT:
            return TakeSnapshot.from_wire(data, timeout_s)
        case FrameType.RESTORE:
            return Restore.from_wire(data, timeout_s)
        case FrameType.FORK:
            return Fork.from_wire(data, timeout_s)
        case FrameType.DROP_SNAPSHOT:
            return DropSnapshot.from_wire(data)
        case FrameType.CANCEL:
            return Cancel.from_wire(data)
        case FrameType.TRAJECTORY:
            return ReadTrajectory()
    raise ValueError(f"{kind.value} is not an operation of a session")


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
