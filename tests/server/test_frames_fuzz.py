"""Whatever is sent to ``/ws`` or to a handle is answered, without an internal error and without a dead session."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fault_bench import ADD, Control, control, modern, run, until
from fault_worlds import Counted, Gated
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

PATIENCE_S = 30
FUZZED = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["add", "call_tool", "list_tools", "reset", "__proto__", "constructor", "\ud800", "\x00"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)

TIMES = st.sampled_from([1, 0.001, 1e-9, 0, -1, 1e9, 10**400, True, "1", None]) | JSON
IDS = st.sampled_from(["a", "b", "", "x" * 255, "x" * 256, 7, None]) | st.text(max_size=5)
NAMES = st.sampled_from(["add", "add_sync", "echo", "reset", "step", "state", "close", "", "__init__", "no such tool"])

ACTIONS = st.one_of(
    st.builds(lambda name, arguments: {"type": "call_tool", "tool_name": name, "arguments": arguments}, NAMES, JSON),
    st.just({"type": "list_tools"}),
    st.just({**ADD, "arguments": {"by": 1}}),
    st.dictionaries(st.sampled_from(["type", "tool_name", "arguments", "metadata", "more"]), JSON, max_size=4),
    JSON,
)


def frame_of(kind: Any, data: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, **({} if data is ... else {"data": data}), **more}


MORE = st.fixed_dictionaries({}, optional={"request_id": IDS, "timeout_s": TIMES})
FRAMES = st.one_of(
    st.builds(frame_of, st.just("step"), ACTIONS, MORE),
    st.builds(
        frame_of,
        st.just("reset"),
        st.just(...) | st.dictionaries(st.sampled_from(["seed", "episode_id", "x"]), JSON, max_size=2) | JSON,
        MORE,
    ),
    st.builds(frame_of, st.just("state"), st.just(...) | JSON, MORE),
    st.builds(
        frame_of, st.just("wait"), st.fixed_dictionaries({}, optional={"timeout_s": TIMES}) | JSON | st.just(...), MORE
    ),
    st.builds(frame_of, st.sampled_from(["trajectory", "cancel"]), JSON | st.just({"request_id": "a"}), MORE),
    st.builds(
        frame_of,
        st.sampled_from(["end", "snapshot", "fork", "restore", "drop_snapshot"]),
        JSON | st.just(...) | st.dictionaries(st.sampled_from(["snapshot_id", "session_id", "reason"]), JSON),
        MORE,
    ),
    st.builds(
        frame_of, st.sampled_from(["mcp", "dance", "close ", "CLOSE", "", None]) | JSON, JSON | st.just(...), MORE
    ),
    st.dictionaries(st.sampled_from(["type", "data", "request_id", "timeout_s", "protocol"]), JSON, max_size=4),
    JSON,
)
MESSAGES = st.one_of(
    FRAMES.map(json.dumps),
    st.text(max_size=60),
    st.binary(max_size=60),
    FRAMES.map(json.dumps).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end])),
    st.sampled_from(
        ["[" * 10_000, '{"a":' * 10_000, '{"type":"step","data":NaN}', "1" * 5_000, '"\\ud800"', "\ufeff{}"]
    ),
)


class Fuzzed(Counted):
    """Takes anything."""

    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter in a thread."""
            self.count += by
            return self.count

        @self.tool
        async def echo(value: Any = None) -> Any:
            """Give it back."""
            return value


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Fuzzed, ServerConfig(max_quarantined=10_000)) as base_url:
        yield base_url


def closes(message: str | bytes) -> bool:
    """Return True for a close frame, which the end of the socket answers."""
    try:
        frame = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        return False
    return isinstance(frame, dict) and frame.get("type") == "close"


SAID = {"observation", "state", "trajectory", "cancel", "snapshot", "fork", "drop_snapshot", "mcp", "error"}
"""Types of replies."""


def hear(socket: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    assert reply["type"] in SAID
    if reply["type"] == "error":
        assert reply["data"]["code"] != "SESSION_ERROR"
        assert "incident" not in reply["data"], reply
        assert "Traceback" not in reply["data"]["message"]
    return reply


@settings(FUZZED, max_examples=3 * FUZZED.max_examples)
@given(messages=st.lists(MESSAGES, max_size=10))
@example(
    messages=['{"type":"reset","timeout_s":1e-9}', '{"type":"step","data":{"type":"list_tools"},"timeout_s":1e-9}']
)
@example(messages=['{"type":"mcp","data":{}}', '{"type":"snapshot"}', '{"type":"fork"}', '{"type":"end"}'])
@example(messages=['{"type":"wait"}', '{"type":"state"}', '{"type":"reset"}', '{"type":"cancel","data":{}}'])
def test_every_frame_is_answered_once_and_the_session_goes_on(url: str, messages: list[str | bytes]) -> None:
    messages = [message for message in messages if not closes(message)]
    note(ascii(messages))
    with connect(url.replace("http", "ws") + "/ws", max_size=None) as socket:
        socket.send('{"type":"reset","request_id":"first"}')
        assert hear(socket)["type"] == "observation"
        for message in messages:
            socket.send(message)
        # A reset ends every wait; what was not answered in order before it, is then.
        socket.send('{"type":"reset","request_id":"last"}')
        replies = [hear(socket) for _ in range(len(messages) + 1)]
        wanted = Counter(id_of(message) for message in messages)
        wanted["last"] += 1
        assert Counter(reply.get("request_id") for reply in replies) == wanted
        # The session is as good as new.
        socket.send(json.dumps({"type": "step", "data": ADD, "request_id": "after"}))
        assert hear(socket)["data"]["observation"]["result"]["data"] == 1
        socket.send('{"type":"state"}')
        assert hear(socket)["data"]["step_count"] == 1


def id_of(message: str | bytes) -> str | None:
    """The request id that the answer to a message must carry."""
    try:
        frame = json.loads(message, parse_constant=refuse) if isinstance(message, str) else None
        json.dumps(frame, ensure_ascii=False).encode()  # a lone surrogate is no JSON text
    except (ValueError, RecursionError):
        return None
    found = frame.get("request_id") if isinstance(frame, dict) else None
    return found if isinstance(found, str) and 0 < len(found) <= 255 else None


def refuse(constant: str) -> Any:
    raise ValueError(constant)


@settings(FUZZED, max_examples=3 * FUZZED.max_examples // 2)
@given(
    body=JSON
    | st.builds(
        lambda method, params: {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        st.sampled_from(
            [
                "tools/call",
                "tools/list",
                "initialize",
                "ping",
                "server/discover",
                "resources/read",
                "prompts/get",
                "completion/complete",
                "logging/setLevel",
                "subscriptions/listen ",
                "reset",
            ]
        )
        | JSON,
        JSON,
    ),
    modern_era=st.booleans(),
)
def test_whatever_is_posted_to_a_handle_the_episode_goes_on(url: str, body: Any, modern_era: bool) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
        reset = http.post("/reset").json()
        mcp_url = reset["info"]["mcp_url"]
        headers = modern("tools/list")[1] if modern_era else {"Accept": "application/json, text/event-stream"}
        if modern_era and isinstance(body, dict):
            params = body.get("params")
            meta = modern("tools/list")[0]["params"]["_meta"]
            body = {**body, "params": {**(params if isinstance(params, dict) else {}), "_meta": meta}}
            headers["Mcp-Method"] = str(body.get("method")).encode("ascii", "ignore").decode().strip() or "x"
            headers = {name: text for name, text in headers.items() if text.isprintable()}
        with http.stream("POST", mcp_url, content=json.dumps(body), headers=headers) as response:
            assert response.status_code != 500
            said = response.read().decode()
        assert "Traceback" not in said
        assert "reward" not in said
        good, good_headers = modern("tools/call", {"name": "add", "arguments": {}})
        answer = http.post(mcp_url, json=good, headers=good_headers).json()
        assert answer["result"]["isError"] is False
        assert http.delete(f"/sessions/{reset['session_id']}").status_code == 200


@settings(FUZZED)
@given(garbage=st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_frames_end_their_own_socket_alone(url: str, garbage: bytes) -> None:
    address = urlsplit(url)
    with connect(url.replace("http", "ws") + "/ws") as witness:
        witness.send('{"type":"reset"}')
        hear(witness)
        with socket.create_connection((address.hostname or "", address.port or 0), PATIENCE_S) as bare:
            bare.sendall(
                b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            assert bare.recv(4096).startswith(b"HTTP/1.1 101")
            bare.sendall(garbage)
        witness.send(json.dumps({"type": "step", "data": ADD}))
        assert hear(witness)["data"]["observation"]["result"]["data"] == 1


def test_frames_that_come_before_there_is_a_session_are_answered_when_there_is() -> None:
    class Own(Gated):
        """A gate of its own."""

    async def early(orchestrator: Control) -> None:
        for number, kind in enumerate(("trajectory", "cancel", "wait", "state", "dance", "reset")):
            await orchestrator.send(kind, request_id=f"r{number}")

    async def main(url: str) -> None:
        Own.wait_in = "constructor"
        async with control(url) as orchestrator:
            await until(lambda: Own.gate.inside == 1, "under construction")
            await early(orchestrator)
            async with httpx.AsyncClient(base_url=url) as http:
                # They are heard while the constructor runs.
                for _ in range(20):
                    assert (await http.get("/capacity")).json()["active_sessions"] == 1
            Own.gate.open()
            replies = {reply["request_id"]: reply for reply in [await orchestrator.hear() for _ in range(6)]}
            assert [replies[f"r{n}"]["data"].get("code") for n in range(6)] == [
                "VALIDATION_ERROR",
                "VALIDATION_ERROR",
                "SESSION_LOST",
                None,
                "UNKNOWN_TYPE",
                None,
            ]

    with serving(Own) as url:
        run(main(url))


@pytest.mark.parametrize("times", [1, 3])
def test_frames_above_the_limit_are_refused_in_words_or_end_their_socket(url: str, times: int) -> None:
    with connect(url.replace("http", "ws") + "/ws", max_size=None) as witness:
        witness.send('{"type":"reset"}')
        hear(witness)
        with connect(url.replace("http", "ws") + "/ws", max_size=None) as socket:
            socket.send('{"type":"reset"}')
            hear(socket)
            socket.send(json.dumps({"type": "step", "data": {**ADD, "x": "y" * (4 * times * 1024 * 1024)}}))
            assert hear(socket)["data"]["code"] == "VALIDATION_ERROR"
            with pytest.raises(ConnectionClosed):  # 1009, where the client gets to read it before it is cut off
                socket.send("x" * (17 * 1024 * 1024))
                socket.recv(PATIENCE_S)
        witness.send(json.dumps({"type": "step", "data": ADD}))
        assert hear(witness)["data"]["observation"]["result"]["data"] == 1
