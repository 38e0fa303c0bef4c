"""The wire protocol of the control plane: frames, states, encode, decode. No I/O here.

Each frame is answered exactly once. The table `TRANSITIONS` lists the frames that an episode accepts in each state. An
unlisted pair is an error that names both.

Frames are text frames with JSON objects. They are the frames of OpenEnv 0.10 (``openenv/core/env_server/types.py``)
plus optional fields, which the server echoes or uses only if a client sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

from pydantic import ValidationError

from mcpenv_client.errors import (
    EpisodeDone,
    InvalidJSON,
    InvalidMessage,
    NotSerializable,
    SessionLost,
    UnknownType,
    WireError,
)
from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.records import ending_data
from mcpenv_client.types.values import decode, encode_plain, revive, to_plain, without_computed

from .faults import faults

MAX_REQUEST_ID = 255
"""Maximum characters of a ``request_id``."""


MAX_REASON = 1000
"""Maximum characters of the ``reason`` of an end."""

MAX_TIMEOUT_S = 1e9
"""Upper bound of every ``timeout_s``, exclusive; seconds."""


class EpisodeState(str, Enum):
    """The state of an environment's episode."""

    NEW = "new"
    RUNNING = "running"
    DONE = "done"
    CLOSED = "closed"


class Event(str, Enum):
    """The events of an episode."""

    RESET = "reset"
    RESET_FAILED = "reset_failed"
    STEP = "step"
    END = "end"
    SNAPSHOT = "snapshot"
    CLOSE = "close"


TRANSITIONS: Mapping[EpisodeState, Mapping[Event, EpisodeState]] = {
    EpisodeState.NEW: {
        Event.RESET: EpisodeState.RUNNING,
        Event.RESET_FAILED: EpisodeState.NEW,
        Event.CLOSE: EpisodeState.CLOSED,
    },
    EpisodeState.RUNNING: {
        Event.RESET: EpisodeState.RUNNING,
        Event.RESET_FAILED: EpisodeState.NEW,
        Event.STEP: EpisodeState.RUNNING,
        Event.SNAPSHOT: EpisodeState.RUNNING,
        Event.END: EpisodeState.DONE,
        Event.CLOSE: EpisodeState.CLOSED,
    },
    EpisodeState.DONE: {
        Event.RESET: EpisodeState.RUNNING,
        Event.RESET_FAILED: EpisodeState.NEW,
        Event.SNAPSHOT: EpisodeState.DONE,
        Event.CLOSE: EpisodeState.CLOSED,
    },
    EpisodeState.CLOSED: {Event.CLOSE: EpisodeState.CLOSED},
}


def next_state(state: EpisodeState, event: Event) -> EpisodeState:
    """Return the state after ``event``.

    Raises:
        EpisodeDone: a step after the end.
        SessionLost: anything after close.
        InvalidMessage: any other unlisted pair.
    """
    following = TRANSITIONS[state].get(event)
    if following is not None:
        return following
    refusal = f"{event.value} is not possible in state {state.value}"
    if state is EpisodeState.CLOSED:
        raise SessionLost(f"{refusal}: the environment is closed")
    if state is EpisodeState.DONE:
        raise EpisodeDone(f"{refusal}: the episode is over, reset to begin another")
    raise InvalidMessage(refusal)


MAX_BEHIND = 16
"""Maximum steps of a session that a server answers before it has written them to its store of durable sessions."""


class FrameType(str, Enum):
    """The frames that a client may send. ``mcp`` carries a JSON-RPC request of OpenEnv's.

    Attributes:
        needs: the required part of its ``data``; None if the data may be omitted.
        urgent: True if it is served at once, even during a step.
    """

    needs: str | None
    urgent: bool

    def __new__(cls, value: str, needs: str | None = None, urgent: bool = False) -> FrameType:
        """Make a member: ``str`` is its value alone."""
        member = str.__new__(cls, value)
        member._value_, member.needs, member.urgent = value, needs, urgent
        return member

    RESET = "reset"
    STEP = "step", "the action"
    END = "end"
    SNAPSHOT = "snapshot"
    RESTORE = "restore", "a snapshot_id"
    FORK = "fork"
    BRANCH = "branch", "a recorded episode and a step"
    DROP_SNAPSHOT = "drop_snapshot", "a snapshot_id"
    STATE = "state"
    CLOSE = "close"
    MCP = "mcp", "a JSON-RPC request"
    WAIT = "wait", None, True
    TRAJECTORY = "trajectory", None, True
    CANCEL = "cancel", None, True


_FRAME_TYPES = {member.value: member for member in FrameType}
_TRACE_KEYS = ("traceparent", "tracestate")
_FRAME_KEYS = frozenset({"type", "data", "request_id", "timeout_s", *_TRACE_KEYS})

MAX_TRACE_FIELD = 1024
"""Maximum characters of ``traceparent`` and ``tracestate``."""


@dataclass(slots=True)
class Frame:
    """The frame of a client, checked as far as possible without the environment.

    Attributes:
        trace: W3C's ``traceparent`` and ``tracestate``, which name the client's span; None without them.
    """

    type: FrameType
    data: dict[str, Any]
    request_id: str | None = None
    timeout_s: float | None = None
    trace: dict[str, str] | None = None


def decode_frame(text: str | bytes) -> Frame:
    """Return the frame that a client sent.

    Raises:
        InvalidJSON, InvalidMessage, UnknownType: use `request_id_of` for the id in the error frame.
    """
    try:
        frame = decode(text)
    except ValueError as error:
        raise InvalidJSON(f"Invalid JSON: {error}") from error
    if not isinstance(frame, dict):
        raise InvalidMessage(f"a frame is a JSON object, not {_json_kind(frame)}")
    kind = frame.get("type")
    member = _FRAME_TYPES.get(kind) if isinstance(kind, str) else None
    if member is None:
        raise UnknownType(f"Unknown message type: {_brief(kind)}")
    data = frame.get("data")
    if data is None:
        if member.needs is not None:
            raise InvalidMessage(
                f"a {kind} frame needs data: {member.needs}", errors=[_fault("data", "Field required")]
            )
        data = {}
    if not frame.keys() <= _FRAME_KEYS:
        extra = [name[:60] for name in sorted(set(frame) - _FRAME_KEYS)[:10]]
        raise InvalidMessage(
            f"unknown field in a {kind} frame: {', '.join(extra)}",
            errors=[_fault(name, "Extra inputs are not permitted") for name in extra],
        )
    if not isinstance(data, dict):
        raise InvalidMessage(
            f"data of a {kind} frame is a JSON object, not {_json_kind(data)}", errors=[_fault("data", "not an object")]
        )
    return Frame(
        member,
        data,
        _request_id(frame["request_id"]) if "request_id" in frame else None,
        timeout_of(frame["timeout_s"]) if "timeout_s" in frame else None,
        _trace_of(frame) if "traceparent" in frame else None,
    )


def request_id_of(text: str | bytes) -> str | None:
    """Return the ``request_id`` of a frame that could not be decoded, for the error frame."""
    try:
        frame = decode(text)
        return _request_id(frame.get("request_id")) if isinstance(frame, dict) else None
    except (ValueError, InvalidMessage):
        return None


def _request_id(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= MAX_REQUEST_ID):
        return value
    raise InvalidMessage(
        f"request_id is a string of 1 to {MAX_REQUEST_ID} characters",
        errors=[_fault("request_id", "not such a string")],
    )


def _trace_of(frame: dict[str, Any]) -> dict[str, str]:
    fields = {name: frame[name] for name in _TRACE_KEYS if frame.get(name) is not None}
    for name, value in fields.items():
        if not isinstance(value, str) or len(value) > MAX_TRACE_FIELD:
            problem = f"not a string of at most {MAX_TRACE_FIELD} characters"
            raise InvalidMessage(f"{name} is {problem}", errors=[_fault(name, problem)])
    return fields


def timeout_of(value: Any) -> float | None:
    """Return a ``timeout_s`` from outside: seconds, more than 0, or None.

    Raises:
        InvalidMessage: anything else.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_TIMEOUT_S:
        return float(value)
    raise InvalidMessage(
        f"timeout_s is a number of seconds, more than 0 and less than {MAX_TIMEOUT_S:.0f}",
        errors=[_fault("timeout_s", "not such a number")],
    )


def ending_of(data: Mapping[str, Any]) -> tuple[bool, str | None]:
    """Return ``truncated`` and ``reason`` from the ``data`` of an end frame.

    Raises:
        InvalidMessage: with locations in ``errors``.
    """
    unknown = [name[:60] for name in sorted(data.keys() - {"truncated", "reason"})[:10]]
    truncated, reason = data.get("truncated", False), data.get("reason")
    wrong = [_fault(name, "Extra inputs are not permitted") for name in unknown]
    if not isinstance(truncated, bool):
        wrong.append(_fault("truncated", "not a boolean"))
    if reason is not None and not (isinstance(reason, str) and len(reason) <= MAX_REASON):
        wrong.append(_fault("reason", f"not a string of at most {MAX_REASON} characters"))
    if wrong:
        raise InvalidMessage("an end frame takes truncated and reason", errors=wrong)
    return truncated, reason


def encode_frame(
    kind: FrameType,
    data: dict[str, Any] | None = None,
    *,
    request_id: str | None = None,
    timeout_s: float | None = None,
    trace: Mapping[str, str] | None = None,
) -> str:
    """Return the text of a client's frame. ``data`` is plain, as `encode_action` and `to_plain` return it.

    Raises:
        NotSerializable: naming the field.
    """
    frame: dict[str, Any] = {"type": kind.value}
    if data is not None:
        frame["data"] = data
    if request_id is not None:
        frame["request_id"] = request_id
    if timeout_s is not None:
        frame["timeout_s"] = timeout_s
    if trace:
        frame.update(trace)
    return encode_plain(frame, kind.value).decode()


class ActionTypes:
    """The actions that an environment takes: the two of MCP and its own, distinguished by ``type``.

    Args:
        own: the environment's action classes. ``type`` may be omitted if there is exactly one.
    """

    def __init__(self, own: Iterable[type[Action]] = ()) -> None:
        self.own = tuple(own)
        self._by_type: dict[str, type[Action]] = {"list_tools": ListToolsAction, "call_tool": CallToolAction}
        for cls in self.own:
            for name in _types_of(cls):
                if name in self._by_type:
                    raise TypeError(
                        f"two action classes with type {name!r}: {self._by_type[name].__name__}, {cls.__name__}"
                    )
                self._by_type[name] = cls

    def __iter__(self) -> Iterator[type[Action]]:
        return iter(dict.fromkeys(self._by_type.values()))

    def parse(self, data: dict[str, Any]) -> Action:
        """Return the action for the ``data`` of a step frame.

        Raises:
            InvalidMessage: with pydantic's locations in ``errors``.
        """
        kind = data.get("type")
        cls = self._by_type.get(kind) if isinstance(kind, str) else None
        if cls is None and kind is None and len(self.own) == 1:
            cls = self.own[0]
        if cls is None:
            known = ", ".join(self._by_type)
            raise InvalidMessage(
                f"unknown action type {_brief(kind)}; this environment takes: {known}",
                errors=[_fault("type", f"not one of: {known}")],
            )
        try:
            if "type" in data and "type" not in cls.model_fields:
                data = {name: value for name, value in data.items() if name != "type"}
            return revive(cls, without_computed(cls, data))
        except ValidationError as error:
            raise InvalidMessage(f"invalid {kind or cls.__name__} action", errors=faults(error)) from error


def action_type(cls: type[Action]) -> str:
    """Return the ``type`` of an action class: the default of its ``type`` field, its first literal, or its name."""
    return _types_of(cls)[0]


def _types_of(cls: type[Action]) -> list[str]:
    """Return all values of ``type`` that the class may have, the default first."""
    field = cls.model_fields.get("type")
    if field is None:
        return [cls.__name__]
    given = (field.default, *get_args(field.annotation))
    names = [name.value if isinstance(name, Enum) else name for name in given]
    return list(dict.fromkeys(name for name in names if isinstance(name, str))) or [cls.__name__]


def encode_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return `encode_action` of a `CallToolAction`.

    Raises:
        pydantic.ValidationError: they are not a name and arguments.
        NotSerializable: naming the field.
    """
    return encode_action(CallToolAction(tool_name=name, arguments=arguments))


def encode_action(action: Action | Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``data`` of a step frame for an action, or for a dict that already is one: plain JSON data.

    Raises:
        NotSerializable: naming the field.
    """
    if type(action) is CallToolAction:
        arguments = to_plain(action.arguments, "arguments")
        call: dict[str, Any] = {"type": "call_tool", "tool_name": action.tool_name, "arguments": arguments}
        if action.metadata:
            call["metadata"] = to_plain(action.metadata, "metadata")
        return call
    data: dict[str, Any] = to_plain(action if isinstance(action, Action) else dict(action), "action")
    if isinstance(action, Action):
        if not data.get("metadata"):
            data.pop("metadata", None)
        data.setdefault("type", action_type(type(action)))
    return data


_BESIDE_THE_BODY = {"reward", "done", "terminated", "truncated", "info"}


def observation_data(observation: Observation) -> dict[str, Any]:
    """Return the ``data`` of an observation frame, also the body of an HTTP reply: plain JSON data.

    Raises:
        NotSerializable: naming the field.
    """
    info = to_plain(observation.info, "info") if observation.info else {}
    if type(observation) is CallToolObservation:  # a subclass may have more fields
        body = {
            "metadata": to_plain(observation.metadata, "observation.metadata"),
            "tool_name": observation.tool_name,
            "result": None if observation.result is None else observation.result.to_plain(),
            "error": None if observation.error is None else observation.error.to_wire(),
        }
    else:
        body = to_plain(observation, "observation", exclude=_BESIDE_THE_BODY)
    return {"observation": body, **ending_data(observation.reward, observation, info, body.get("metadata"))}


def encode_reply(kind: str, data: dict[str, Any], request_id: str | None = None) -> str:
    """Return the text of a server's frame: ``observation``, ``state``, ``error`` and others. ``data`` is plain.

    Raises:
        NotSerializable: naming the field.
    """
    frame: dict[str, Any] = {"type": kind, "data": data}
    if request_id is not None:
        frame["request_id"] = request_id
    return encode_plain(frame, kind).decode()


@dataclass(slots=True)
class Reply:
    """The frame of a server."""

    type: str
    data: dict[str, Any]
    request_id: str | None = None
    protocol: str | None = None


def decode_reply(text: str | bytes) -> Reply:
    """Return the frame that a server sent.

    Raises:
        InvalidJSON, InvalidMessage: the frame does not fit this protocol.
    """
    try:
        frame = decode(text)
    except ValueError as error:
        raise InvalidJSON(f"the server sent a frame that is not JSON: {error}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise InvalidMessage("the server sent a frame without a type")
    data = frame.get("data")
    if not isinstance(data, dict):
        raise InvalidMessage(f"data of the server's {_brief(frame['type'])} frame is {_json_kind(data)}")
    request_id, protocol = frame.get("request_id"), frame.get("protocol")
    return Reply(
        frame["type"],
        data,
        request_id if isinstance(request_id, str) else None,
        protocol if isinstance(protocol, str) else None,
    )


def parse_observation(payload: Mapping[str, Any], cls: type[Observation]) -> Observation:
    """Return an observation of class ``cls`` from the ``data`` of an observation frame.

    Raises:
        pydantic.ValidationError: the data is invalid.
        InvalidMessage: its reward is the text of NaN or infinity.
    """
    body = dict(payload["observation"])
    for name in ("reward", "done", "terminated", "truncated", "info"):
        if payload.get(name) is not None:
            body[name] = payload[name]
    if "metadata" not in body and payload.get("metadata") is not None:
        body["metadata"] = payload["metadata"]
    try:
        return revive(cls, body)
    except NotSerializable as error:
        raise InvalidMessage(f"the server's observation: {error}") from error


def _fault(name: str, message: str) -> dict[str, Any]:
    return {"loc": [name], "msg": message, "type": "value_error"}


def _brief(value: Any) -> str:
    """Return a short text of a value from outside, for a message."""
    return repr(value[:60]) if isinstance(value, str) else _json_kind(value)


def _json_kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


__all__ = [
    "MAX_REASON",
    "MAX_REQUEST_ID",
    "MAX_TIMEOUT_S",
    "TRANSITIONS",
    "ActionTypes",
    "EpisodeState",
    "Event",
    "Frame",
    "FrameType",
    "Reply",
    "WireError",
    "action_type",
    "decode_frame",
    "decode_reply",
    "encode_action",
    "encode_call",
    "encode_frame",
    "encode_reply",
    "ending_of",
    "next_state",
    "observation_data",
    "parse_observation",
    "request_id_of",
    "timeout_of",
]
