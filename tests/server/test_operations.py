"""Operations: what each frame's data decodes to, and how it is refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from mcpenv import Action, MCPEnvironment
from mcpenv.server.sessions import operations
from mcpenv.server.sessions.credential import Credential
from mcpenv.server.sessions.operations import OPERATIONS, Operation
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.actions import ListToolsAction
from mcpenv_client.wire.protocol import ActionTypes, FrameType


class Move(Action):
    """An action of the environment's own."""

    type: Literal["move"] = "move"
    by: int


class Board(MCPEnvironment):
    """An environment whose reset takes a level."""

    def reset(self, level: int = 1) -> None:  # type: ignore[override]
        """Begin."""


class Decoding(Session):
    """A session, as far as decoding reads it."""

    __slots__ = ()

    def __init__(self) -> None:
        self.actions = ActionTypes([Move])
        self.execution = Board()._execution


SESSION = Decoding()
SECRET = {"session_id": "a" * 16, "session_token": "b" * 16}


@pytest.mark.parametrize(
    ("kind", "data", "operation"),
    [
        (
            "step",
            {"type": "call_tool", "tool_name": "t", "arguments": {"a": [1, 2**70, 1e30]}},
            operations.CallTool("t", {"a": [1, 2**70, 1e30]}, 3.0),
        ),
        ("step", {"type": "list_tools"}, operations.Act(ListToolsAction(), 3.0)),
        ("step", {"by": 2}, operations.Act(Move(by=2), 3.0)),
        ("end", {}, operations.End(False, None)),
        ("end", {"truncated": True, "reason": "late"}, operations.End(True, "late")),
        ("state", {"ignored": 1}, operations.ReadState(3.0)),
        ("snapshot", {}, operations.TakeSnapshot(3.0)),
        ("restore", {"snapshot_id": "s"}, operations.Restore("s", 3.0)),
        ("fork", {}, operations.Fork(None, None, 3.0)),
        ("fork", {"snapshot_id": "s"} | SECRET, operations.Fork("s", Credential.of("a" * 16, "b" * 16), 3.0)),
        ("drop_snapshot", {"snapshot_id": "s"}, operations.DropSnapshot("s")),
        ("cancel", {"request_id": "r"}, operations.Cancel("r")),
        ("trajectory", {}, operations.ReadTrajectory()),
    ],
)
def test_a_frame_decodes_to_an_operation(kind: str, data: dict[str, Any], operation: operations.Operation) -> None:
    assert OPERATIONS[FrameType(kind)].from_wire(data, SESSION, 3.0) == operation


def test_a_reset_has_its_options_in_the_types_of_the_environment() -> None:
    asked = OPERATIONS[FrameType.RESET].from_wire({"seed": 4, "episode_id": "e", "level": 7}, SESSION, 3.0)
    assert isinstance(asked, operations.Reset)
    assert (asked.seed, asked.episode_id, asked.wanted.options, asked.timeout_s) == (4, "e", {"level": 7}, 3.0)
    assert not asked.wanted.any


@pytest.mark.parametrize(
    ("kind", "data", "message", "where"),
    [
        ("reset", {"seed": True}, "seed is an integer", ["seed"]),
        ("reset", {"depth": 1}, "unknown reset option 'depth'; this environment's options: level", ["depth"]),
        (
            "step",
            {"type": "jump"},
            "unknown action type 'jump'; this environment takes: list_tools, call_tool, move",
            ["type"],
        ),
        ("step", {"type": "call_tool"}, "invalid call_tool action", ["tool_name"]),
        ("end", {"truncated": 1}, "an end frame takes truncated and reason", ["truncated"]),
        ("snapshot", {"name": "x"}, "unknown field: name", ["data", "name"]),
        ("restore", {}, "snapshot_id is needed", ["data", "snapshot_id"]),
        ("restore", {"snapshot_id": 7}, "snapshot_id is a string", ["data", "snapshot_id"]),
        ("fork", {"session_id": 7}, "session_id is a string", ["data", "session_id"]),
        (
            "fork",
            {"session_id": "a" * 16},
            "to resume, send a session id of 16 to 128 URL-safe characters, and a token",
            None,
        ),
        ("drop_snapshot", {"snapshot_id": None}, "snapshot_id is needed", ["data", "snapshot_id"]),
        ("cancel", {"request_id": 7}, "cancel needs data.request_id", ["data", "request_id"]),
    ],
)
def test_data_that_does_not_fit_is_refused_with_its_place(
    kind: str, data: dict[str, Any], message: str, where: list[str] | None
) -> None:
    with pytest.raises(InvalidMessage) as refused:
        OPERATIONS[FrameType(kind)].from_wire(data, SESSION)
    assert refused.value.message == message
    assert [fault["loc"] for fault in refused.value.errors or []] == ([] if where is None else [where])


@pytest.mark.parametrize(
    ("operation", "result", "data"),
    [
        (
            operations.TakeSnapshot,
            operations.SnapshotTaken("s", "e", 3, 99),
            {"snapshot_id": "s", "episode_id": "e", "step": 3, "bytes": 99},
        ),
        (operations.Fork, operations.Forked("i", None, None), {"session_id": "i", "episode_id": None, "mcp_url": None}),
        (operations.DropSnapshot, False, {"dropped": False}),
        (operations.Cancel, True, {"cancelled": True}),
    ],
)
def test_results_are_spelled_by_their_fields(operation: type[Operation], result: Any, data: dict[str, Any]) -> None:
    assert list(operation.reply_data(result).items()) == list(data.items())


def test_each_frame_has_an_operation_but_close_and_those_of_extensions() -> None:
    assert OPERATIONS.keys() == {*FrameType} - {FrameType.CLOSE, FrameType.MCP, FrameType.BRANCH}
