"""Encoding of results and errors as frames of ``/ws``; HTTP replies are the ``data`` of the same frames."""

from __future__ import annotations

import dataclasses
from typing import Any

from mcpenv.server.sessions.operations import Cancelled, Dropped, Forked, Result, SnapshotTaken, ToolCalled
from mcpenv_client.errors import WireError
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.state import State
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import encode_reply, observation_data, step_data

_KINDS: dict[type[Result], str] = {
    Trajectory: "trajectory",
    SnapshotTaken: "snapshot",
    Forked: "fork",
    Dropped: "drop_snapshot",
    Cancelled: "cancel",
}


def data_of(result: Result) -> dict[str, Any]:
    """Return the ``data`` of the frame that answers an operation: plain JSON data.

    Raises:
        NotSerializable: naming the field.
    """
    match result:
        case ToolCalled():
            return step_data(result.record, result.record.outcome.result_data(), result.info)
        case Observation():
            return observation_data(result)
        case State():
            state: dict[str, Any] = to_plain(result, "state")
            return state
        case Trajectory():
            return result.to_plain()
    return dataclasses.asdict(result)


def result_text(result: Result, request_id: str | None) -> str:
    """Return the text of the frame that answers an operation.

    Raises:
        NotSerializable: naming the field.
    """
    match result:
        case ToolCalled() | Observation():
            kind = "observation"
        case State():
            kind = "state"
        case _:
            kind = _KINDS[type(result)]
    return encode_reply(kind, data_of(result), request_id)


def error_text(error: WireError, request_id: str | None) -> str:
    """Return the text of the frame that answers a request that was refused or failed."""
    return encode_reply("error", error.to_wire(), request_id)
