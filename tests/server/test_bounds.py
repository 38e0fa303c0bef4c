"""Test the bounds on what a client without credentials can occupy. docs/reference/attacks.md has the table."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from attack_bench import ACCEPT, PATIENCE_S, Answer, connection, parsed
from fastmcp import Client
from fault_bench import modern
from mcp.shared.exceptions import MCPError
from mcp_types import EmbeddedResource, ImageContent, TextResourceContents
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from mcpenv import MCPEnvironment
from mcpenv.server import uvicorn_server
from mcpenv.server.config import ServerConfig
from mcpenv.server.http import file_limits, http_protocol, open_connections
from mcpenv.server.http.websocket_protocol import PIECE, WebSocketProtocol
from mcpenv.server.mcp.connections import MAX_FIRST_BYTES, MAX_PLAIN_BYTES, HandshakeConnections
from mcpenv.server.serve import serving
from mcpenv_client import CapacityReached, EnvClient, InvalidMessage, ReplyGone, ServerCapacityStatus
from mcpenv_client.types.values import MAX_PARTS

WAIT_S = 1.0
"""Seconds that the servers of these tests wait for their clients."""

MANY = 50_000

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Held(MCPEnvironment):
    """Counts, repeats, and holds calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.gate = threading.Event()
        gates.append(self)

        @self.tool
        def add(by: int = 1) -> int:
            """Add."""
            return by

        @self.tool
        def long(size: int) -> str:
            """Return a long text."""
            return "x" * size

        @self.tool
        def repeat(text: str) -> str:
            """Return the text."""
            return text

        @self.tool(concurrent=True)
        def hold() -> str:
            """Wait for the gate."""
            self.gate.wait(PATIENCE_S)
            return "held"


gates: list[Held] = []


def open_gates() -> None:
    """Let held calls return."""
    for each in gates:
        each.gate.set()
    gates.clear()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "KEEP_ALIVE_S", WAIT_S)


def post(path: str, body: bytes, headers: dict[str, str], length: int | None = None) -> bytes:
    """Return the bytes of a request."""
    lines = {"Host": "127.0.0.1", **headers, "Content-Length": str(len(body) if length is None else length)}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def call(tool: str, arguments: dict[str, object], path: str = "/mcp") -> bytes:
    """Return the bytes of an agent's call."""
    message, headers = modern("tools/call", {"name": tool, "arguments": arguments})
    return post(path, json.dumps(message).encode(), headers)


def answer_on(wire: socket.socket) -> Answer:
    """Read one answer, and leave the connection open."""
    received = b""
    while True:
        piece = wire.recv(65536)
        assert piece, received
        received += piece
        head, found, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if found and (received.endswith(b"0\r\n\r\n") if length is None else len(body) >= int(length[1])):
            return parsed(received)


def is_closed(wire: socket.socket) -> bool:
    """Read until the server closes; False if it does not within `PATIENCE_S`."""
    with suppress(ConnectionError):
        try:
            while wire.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


@contextmanager
def websocket(url: str) -> Iterator[socket.socket]:
    """Open ``/ws`` by hand."""
    with connection(url) as wire:
        key = base64.b64encode(os.urandom(16)).decode()
        wire.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert wire.recv(4096).startswith(b"HTTP/1.1 101")
        yield wire


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, length: int | None = None) -> bytes:
    """Return the bytes of a client's frame, or of its beginning."""
    size = len(payload) if length is None else length
    head = bytes([(0x80 if fin else 0) | opcode])
    head += bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


# -- time


@pytest.mark.usefixtures("_impatient")
def test_a_connection_that_waits_for_its_client_too_long_is_closed() -> None:
    """Also if it sends line breaks, or a body so slowly that it would take hours."""
    half = post("/mcp", b"{", ACCEPT, length=1000)
    with serving(Held) as url, ExitStack() as stack:
        wires = [stack.enter_context(connection(url)) for _ in range(6)]
        beginnings = [b"", b"\r\n", HEAD[:-8], half, HEAD + b"\r\n", HEAD + b"\r\n" + HEAD]
        for wire, beginning in zip(wires, beginnings, strict=True):
            wire.sendall(beginning)
        assert [is_closed(wire) for wire in wires] == [True] * len(wires)


@pytest.mark.usefixtures("_impatient")
def test_a_connection_whose_request_is_answered_is_not_closed() -> None:
    """Nor one that sends a long body, or one that has become a WebSocket."""
    with serving(Held, max_concurrent_envs=4) as url, connection(url) as held, connection(url) as silent:
        with websocket(url) as orchestrator:
            held.sendall(call("hold", {}))
            assert is_closed(silent)  # so the others have waited as long
            open_gates()
            assert answer_on(held).text == "held"
            orchestrator.sendall(frame(1, b'{"type":"state"}'))
            assert orchestrator.recv(65536)


@pytest.mark.usefixtures("_impatient")
def test_a_body_that_arrives_has_all_the_time_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MIN_BODY_BYTES", 1)
    request = call("long", {"size": 1})
    with serving(Held) as url, connection(url) as slow:
        slow.sendall(request[:-3])
        for index in range(len(request) - 3, len(request)):
            with connection(url) as silent:
                assert is_closed(silent)
            slow.sendall(request[index : index + 1])
        assert answer_on(slow).text == "x"


@pytest.mark.usefixtures("_impatient")
def test_an_answer_that_nobody_reads_ends_its_connection() -> None:
    with serving(Held) as url, connection(url) as wire:
        wire.sendall(call("long", {"size": 24 << 20}))
        head = wire.recv(4096)
        for _ in range(3):
            with connection(url) as silent:
                assert is_closed(silent)
        received = len(head)
        with suppress(ConnectionError):
            while piece := wire.recv(1 << 20):
                received += len(piece)
    assert received < 24 << 20


# -- number


def test_silent_connections_do_not_keep_a_new_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest silent one is closed for it; neither a call nor an orchestrator's socket is."""
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 20)
    with serving(Held, max_concurrent_envs=4) as url, ExitStack() as stack, connection(url) as held:
        held.sendall(call("hold", {}))
        orchestrator = stack.enter_context(websocket(url))
        is_answered(orchestrator)
        silent = [stack.enter_context(connection(url)) for _ in range(40)]
        silent[-1].sendall(HEAD + b"\r\n")
        assert answer_on(silent[-1]).status == 200
        assert [is_closed(wire) for wire in silent[:20]] == [True] * 20
        assert httpx.get(f"{url}/health").status_code == 200
        open_gates()
        assert answer_on(held).text == "held"
        is_answered(orchestrator)


def test_the_log_counts_connections_that_were_closed_for_new_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_limits, "TOLD_EVERY_S", 0.0)
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 20)
    with serving(Held, max_concurrent_envs=4) as url, ExitStack() as stack:
        silent = [stack.enter_context(connection(url)) for _ in range(40)]
        assert [is_closed(wire) for wire in silent[:20]] == [True] * 20
        while sum(closed := closed_for_room(caplog)) < 20:
            assert httpx.get(f"{url}/health").status_code == 200
        figures = dict(line.split(" ") for line in httpx.get(f"{url}/metrics").text.splitlines() if line[0] != "#")
        assert float(figures["mcpenv_connections_closed_total"]) >= sum(closed)


def test_the_log_counts_them_in_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        closed = file_limits.ClosedForRoom()
        for _ in range(2):
            for _ in range(20):
                closed.add()
            while not closed_for_room(caplog):
                await asyncio.sleep(0.01)
        await asyncio.sleep(2 * file_limits.TOLD_AFTER_S)

    asyncio.run(main())
    assert closed_for_room(caplog) == [20]


def closed_for_room(caplog: pytest.LogCaptureFixture) -> list[int]:
    lines = [record.getMessage() for record in caplog.records]
    return [int(line.split()[1]) for line in lines if line.startswith("closed ") and "(ulimit -n)" in line]


def is_answered(orchestrator: socket.socket) -> None:
    orchestrator.sendall(frame(1, b'{"type":"state"}'))
    assert orchestrator.recv(65536)


@contextmanager
def listening(url: str) -> Iterator[socket.socket]:
    """Open the standing stream of a handshake connection."""
    with connection(url) as first, connection(url) as wire:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        first.sendall(post("/mcp", json.dumps(message).encode(), ACCEPT))
        session = answer_on(first).headers["mcp-session-id"]
        wire.sendall(
            "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\n\r\n".encode()
        )
        assert wire.recv(4096).startswith(b"HTTP/1.1 200")
        yield wire


@pytest.mark.parametrize("kind", ["nothing", "a ping", "no frame", "a frame without a session", "a stream"])
def test_unused_sockets_and_streams_do_not_keep_a_new_client_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in use is not closed for it: none with a session that has answered, or that was resumed."""
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 20)
    most = 4 if kind == "a frame without a session" else 64
    sent = {"a ping": frame(9), "no frame": frame(1, b"{"), "a frame without a session": frame(1, b'{"type":"state"}')}
    with (
        serving(Held, max_concurrent_envs=most) as url,
        ExitStack() as stack,
        connect(f"{url}/ws".replace("http", "ws")) as used,
    ):
        used.send('{"type":"reset"}')
        assert used.recv(PATIENCE_S)
        wires = []
        for _ in range(40):
            wires.append(stack.enter_context(listening(url) if kind == "a stream" else websocket(url)))
            wires[-1].sendall(sent.get(kind, b""))
        for _ in range(3):
            assert httpx.get(f"{url}/health").status_code == 200
        # With few sessions, the first three have one each.
        assert [is_closed(wire) for wire in wires[3:10]] == [True] * 7
        used.send('{"type":"state"}')
        assert json.loads(used.recv(PATIENCE_S))["type"] == "state"


@pytest.mark.parametrize("kind", ["sessions", "waiting resets"])
def test_a_server_whose_connections_are_all_in_use_says_so_and_answers_probes(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_connections, "ROOM_S", 0.01)
    allowed = iter([4])  # before the server has raised its limit of open files; 5 of the later 20 are kept for probes
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: next(allowed, 20))
    sessions = 15 if kind == "sessions" else 1
    with serving(Held, max_concurrent_envs=64 if kind == "sessions" else 1) as url, ExitStack() as stack:
        address = f"{url}/ws".replace("http", "ws")
        used = [stack.enter_context(connect(address)) for _ in range(sessions)]
        for each in used:
            each.send('{"type":"reset"}')
            assert each.recv(PATIENCE_S)
        waiting = [stack.enter_context(connection(url)) for _ in range(15 - sessions)]
        for wire in waiting:
            wire.sendall(post("/reset", b"{}", {"Content-Type": "application/json"}))
        for path in ("/health", "/capacity", "/metrics?x=1") * 5:  # the server has read what was sent before
            assert httpx.get(url + path).status_code == 200
        unready = httpx.get(f"{url}/ready")
        assert (unready.status_code, unready.json()["reason"]) == (503, "all connections are in use")
        assert unready.headers["connection"] == "close"  # a descriptor less, and the client knows
        capacity = ServerCapacityStatus.model_validate(httpx.get(f"{url}/capacity").json())
        assert (capacity.ready, capacity.reason) == (False, "all connections are in use")
        assert (capacity.available_slots, capacity.is_at_capacity) == (0, True)
        assert "\nmcpenv_ready 0\n" in httpx.get(f"{url}/metrics").text
        refused = httpx.post(f"{url}/reset", json={})
        assert (refused.status_code, refused.json()) == (
            503,
            {"code": "CAPACITY_REACHED", "message": "all connections are in use", "retry_after_s": 1.0},
        )
        assert int(refused.headers["retry-after"]) > 0
        assert "\nmcpenv_connections_refused_total 1.0\n" in httpx.get(f"{url}/metrics").text
        if waiting:
            used[0].close()
            assert answer_on(waiting[0]).status == 200
            return
        with connect(address) as late, pytest.raises(ConnectionClosedError) as closed:
            late.send('{"type":"reset"}')
            assert json.loads(late.recv(PATIENCE_S))["data"]["code"] == "CAPACITY_REACHED"
            late.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "all connections are in use")
        with pytest.raises(CapacityReached, match=r"all connections are in use$") as told:
            stack.enter_context(EnvClient(url).sync()).reset()
        assert told.value.data["retry_after_s"] > 0
        assert "\nmcpenv_connections_refused_total 3.0\n" in httpx.get(f"{url}/metrics").text
        assert told_of_room(caplog) == ["all connections are in use"]
        used[0].close()
        while httpx.get(f"{url}/ready").status_code == 503 or len(told_of_room(caplog)) < 2:
            pass
        capacity = ServerCapacityStatus.model_validate(httpx.get(f"{url}/capacity").json())
        assert (capacity.available_slots, capacity.ready) == (64 - 14, True)
        assert told_of_room(caplog)[1:] == ["connections are free again"]
        with connect(address) as late:
            late.send('{"type":"reset"}')
            assert late.recv(PATIENCE_S)


def told_of_room(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines that say that a server is full, or has room again."""
    lines = [record.getMessage().partition(",")[0] for record in caplog.records]
    return [line for line in lines if line.startswith(("all connections are", "connections are free"))]


def test_a_full_server_answers_many_probes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are connections kept for them: a quarter of few."""
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 200)
    config = ServerConfig(queue_timeout_s=10 * PATIENCE_S)
    with serving(Held, config, max_concurrent_envs=1) as url, ExitStack() as stack, connection(url) as held:
        held.sendall(call("hold", {}))
        while ServerCapacityStatus.model_validate(httpx.get(f"{url}/capacity").json()).available_slots:
            pass  # a reset that comes before the call is answered, and its connection is in use no longer
        for _ in range(149):
            stack.enter_context(connection(url)).sendall(post("/reset", b"{}", {"Content-Type": "application/json"}))
        while httpx.get(f"{url}/ready").status_code == 200:
            pass
        many = [stack.enter_context(connection(url)) for _ in range(49)]
        for wire in many:
            wire.sendall(HEAD + b"\r\n")
        assert [answer_on(wire).status for wire in many] == [200] * len(many)
        assert "\nmcpenv_connections_closed_total 0.0\n" in httpx.get(f"{url}/metrics").text
        open_gates()


def test_a_socket_of_who_has_the_control_token_is_not_closed_for_new_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 20)
    token = {"Authorization": "Bearer the-control-token"}
    with (
        serving(Held, ServerConfig(control_token="the-control-token"), max_concurrent_envs=4) as url,
        ExitStack() as stack,
    ):
        with connect(f"{url}/ws".replace("http", "ws"), additional_headers=token) as idle:
            silent = [stack.enter_context(connection(url)) for _ in range(40)]
            assert [is_closed(wire) for wire in silent[:20]] == [True] * 20
            assert httpx.get(f"{url}/health").status_code == 200
            idle.send('{"type":"state"}')
            assert json.loads(idle.recv(PATIENCE_S))["type"] == "state"


def test_unfinished_bodies_and_frames_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound, the oldest is given up; later ones, and all that are whole, are served."""
    monkeypatch.setattr(uvicorn_server, "UNFINISHED_BODIES", 2)
    size = 1 << 20
    with serving(Held, ServerConfig(max_message_bytes=size)) as url, ExitStack() as stack:
        first, third, fourth = (stack.enter_context(connection(url)) for _ in range(3))
        second = stack.enter_context(websocket(url))
        body = b'"' + b"x" * (size - 1000)
        first.sendall(post("/mcp", body, ACCEPT, length=size - 1))
        assert httpx.get(f"{url}/health").status_code == 200
        second.sendall(frame(1, body, length=2 * size))
        assert httpx.get(f"{url}/health").status_code == 200
        third.sendall(post("/mcp", body, ACCEPT, length=len(body) + 1))
        assert is_closed(first)
        fourth.sendall(post("/mcp", body, ACCEPT, length=size - 1))
        assert is_closed(second)
        third.sendall(b'"')
        assert answer_on(third).status == 400


# -- memory


def test_what_a_handshake_says_of_its_client_is_not_kept_whole() -> None:
    """Neither a name of megabytes, nor icons, nor capabilities; the client is served all the same."""
    long = "n" * (2 << 20)
    infos: list[tuple[dict[str, object], dict[str, object]]] = [
        ({"name": long, "version": "1"}, {}),
        ({"name": "small", "version": long}, {}),
        ({"name": "small", "version": "1", "icons": [{"src": "data:image/png;base64," + long}]}, {"roots": {}}),
        ({"name": "small", "version": "1"}, {"experimental": {"x": {"y": long}}, "sampling": {}}),
    ]
    kept: list[int] = []
    opened = HandshakeConnections.opened

    def noted(self: HandshakeConnections, handle: str | None, connection: str, user: object, size: int) -> None:
        kept.append(size)
        opened(self, handle, connection, user, size)

    with pytest.MonkeyPatch.context() as patch, serving(Held) as url:
        patch.setattr(HandshakeConnections, "opened", noted)
        for info, capabilities in infos:
            params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            answer = httpx.post(f"{url}/mcp", json=message, headers=ACCEPT)
            assert answer.status_code == 200
            headers = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
            ping = httpx.post(f"{url}/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "ping"}, headers=headers)
            assert ping.status_code == 200
        other = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": long}}
        assert httpx.post(f"{url}/mcp", json=other, headers=ACCEPT).status_code == 400
    assert len(kept) == 4 and max(kept) <= MAX_FIRST_BYTES


def test_handshake_connections_are_bounded_by_the_bytes_that_they_keep() -> None:
    """The least recently used one is closed before there are too many."""
    name = "n" * (MAX_FIRST_BYTES - 1000)
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name, "version": "1"}}
    with serving(Held) as url, httpx.Client(headers=ACCEPT) as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        many = MAX_PLAIN_BYTES // len(name) + 2
        ids = [http.post(f"{url}/mcp", json=message).headers["mcp-session-id"] for _ in range(many)]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

        def status(number: int) -> int:
            return http.post(f"{url}/mcp", json=ping, headers={"Mcp-Session-Id": ids[number]}).status_code

        assert status(-1) == 200
        assert status(0) == 404


def test_the_steps_of_an_episode_are_bounded_by_their_bytes() -> None:
    class Small(Held):
        max_kept_bytes = 1 << 20

    with serving(Small, max_concurrent_envs=2) as url, EnvClient(url).sync() as env:
        address = urlsplit(env.reset().info["mcp_url"]).path
        for _ in range(12):
            with connection(url) as wire:
                wire.sendall(call("add", {"by": "x" * 200_000}, address))
                assert "invalid arguments" in answer_on(wire).text
        trajectory = env.trajectory()
    assert trajectory.dropped == 7 and [step.call.step for step in trajectory.steps] == [8, 9, 10, 11, 12]


@pytest.mark.parametrize(("kind", "dropped"), [("image", 0), ("resource", 6)])
def test_images_count_an_eighth_of_their_bytes_and_resources_all(kind: str, dropped: int) -> None:
    class Draws(MCPEnvironment):
        max_kept_bytes = 1 << 20

        def __init__(self) -> None:
            @self.tool
            def draw() -> Any:
                if kind == "image":
                    return ImageContent(type="image", data="aaaa" * 60_000, mime_type="image/png")
                text = TextResourceContents(uri="file:///a", text="a" * 240_000)
                return EmbeddedResource(type="resource", resource=text)

    with Draws() as env:
        env.reset()
        for _ in range(10):
            env.call_tool("draw")
        assert env.trajectory is not None and env.trajectory.dropped == dropped


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("add", {f"k{number}": 1 for number in range(150_000)}),
        ("add", {"k" * 1_000_000: 1}),
        ("add", {f"k{number}": 1 for number in range(300)}),
        ("t" * 30_000, {}),
    ],
    ids=["many", "long", "some", "name"],
)
def test_a_refusal_is_shorter_than_what_it_refuses(tool: str, arguments: dict[str, object]) -> None:
    with serving(Held, max_concurrent_envs=2) as url, EnvClient(url).sync() as env:
        address = urlsplit(env.reset().info["mcp_url"]).path
        with connection(url) as wire:
            wire.sendall(call(tool, arguments, address))
            answer = answer_on(wire)
        observation = env.call_tool(tool, arguments)
    assert len(answer.body) < 10_000
    assert observation.error is not None and len(observation.error.message) < 5_000
    assert len(json.dumps(observation.error.errors)) < 10_000


# -- the parts of a message

CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": CLIENT}


def on_each_plane(url: str, session_id: str, items: str) -> dict[str, tuple[int, str]]:
    """Call ``count`` with these items, and return the status and the text of the answers; 0 for a frame's."""
    answers: dict[str, tuple[int, str]] = {}
    arguments = f'{{"items":{items}}}'
    message, headers = modern("tools/call", {"name": "count", "arguments": "HERE"})
    body = json.dumps(message).replace('"HERE"', arguments)
    rpc = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"count","arguments":{arguments}}}}}'
    action = f'{{"type":"call_tool","tool_name":"count","arguments":{arguments}}}'
    plain = {"Content-Type": "application/json"}
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
        began = http.post("/mcp", headers=ACCEPT, json=INITIALIZE)
        joined = {**ACCEPT, "Mcp-Session-Id": began.headers["mcp-session-id"]}
        for name, path, its, text in (
            ("modern", "/mcp", headers, body),
            ("handshake", "/mcp", joined, rpc),
            ("first", "/mcp", ACCEPT, rpc.replace("tools/call", "initialize")),
            ("http", "/step", plain, f'{{"session_id":"{session_id}","action":{action}}}'),
            ("openenv", "/mcp", plain, rpc),
            ("initialize", "/mcp", plain, rpc.replace("tools/call", "initialize")),
        ):
            answer = http.post(path, headers=its, content=text)
            answers[name] = answer.status_code, answer.text
    with connect(url.replace("http", "ws") + "/ws", max_size=None) as orchestrator:
        orchestrator.send('{"type":"reset","data":{}}')
        orchestrator.recv(PATIENCE_S)
        orchestrator.send(f'{{"type":"step","data":{action}}}')
        answers["frame"] = 0, str(orchestrator.recv(PATIENCE_S))
    return answers


class Counts(MCPEnvironment):
    """Counts."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def count(items: list[Any]) -> str:
            """Count the items."""
            return f"{len(items)} items"


@pytest.mark.parametrize("part", ["[]", "{}", "[" * 150 + "]" * 150, "0", '"\u00e9"'])
def test_a_message_of_too_many_parts_is_refused_before_it_is_read(part: str) -> None:
    """Each part would become an object that is larger than its text, and some are walked over in Python."""
    many = f"[{','.join([part] * (4_100_000 // (len(part.encode()) + 1)))}]"
    with serving(Counts, max_concurrent_envs=8) as url:
        session_id = httpx.post(f"{url}/reset", json={}).json()["session_id"]
        on_each_plane(url, session_id, "[]")
        tracemalloc.start()
        try:
            answers = on_each_plane(url, session_id, many)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert {name: status for name, (status, _) in answers.items()} == {**dict.fromkeys(answers, 413), "frame": 0}
    for _, text in answers.values():
        (said,) = re.findall(r"has (\d+) lists, objects and commas, more than 200000; send less at once", text)
        assert int(said) > MAX_PARTS
    assert peak < 110 << 20


@pytest.mark.parametrize(
    ("items", "answer"),
    [
        (json.dumps([0.5] * 100_000), "100000 items"),
        (json.dumps([[]] * (MAX_PARTS // 2 - 50)), f"{MAX_PARTS // 2 - 50} items"),
        (json.dumps(["a,[{" * 750_000]), "1 items"),
        (json.dumps(['\\",[{"' * 300_000]), "1 items"),
    ],
    ids=["numbers", "lists", "text", "escapes"],
)
def test_a_large_message_of_fewer_parts_is_served(items: str, answer: str) -> None:
    with serving(Counts, max_concurrent_envs=8) as url:
        session_id = httpx.post(f"{url}/reset", json={}).json()["session_id"]
        answers = on_each_plane(url, session_id, items)
    served = {name for name, (_, text) in answers.items() if answer in text}
    assert served - {"openenv"} == {"modern", "handshake", "http", "frame"}  # plain calls are of the extension openenv


def test_clients_are_told_of_too_many_parts() -> None:
    async def main(url: str) -> None:
        many: dict[str, Any] = {"items": [[]] * MAX_PARTS}
        async with Client(url + "/mcp") as agent:
            with pytest.raises(MCPError, match="lists, objects and commas"):
                await agent.call_tool("count", many)
            assert (await agent.call_tool("count", {"items": []})).data == "0 items"
        async with EnvClient(url) as env:
            await env.reset()
            with pytest.raises(InvalidMessage, match="lists, objects and commas"):
                await env.call_tool("count", many)
            assert (await env.call_tool("count", {"items": []})).text == "0 items"

    with serving(Counts, max_concurrent_envs=8) as url:
        asyncio.run(main(url))


# -- the event loop


@pytest.mark.parametrize(
    ("first", "many", "last"),
    [
        (b"", frame(9), b""),
        (frame(1, b"{", fin=False), frame(0, fin=False), frame(0, b"}")),
        (b"", frame(1, b"{}"), b""),
    ],
    ids=["pings", "continuations", "messages"],
)
def test_small_frames_do_not_hold_the_loop(
    first: bytes, many: bytes, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are parsed at a time, and all are answered."""
    at_once: list[int] = []
    handle = WebSocketProtocol.handle_events

    def counted(protocol: WebSocketProtocol) -> None:
        at_once.append(len(protocol.conn.events))
        handle(protocol)
        assert len(protocol.frames) <= 1

    monkeypatch.setattr(WebSocketProtocol, "handle_events", counted)
    with serving(Held, max_concurrent_envs=2) as url, websocket(url) as wire:
        wire.sendall(frame(1, b"{}"))
        refusal = len(wire.recv(65536))
        expected = refusal if last else 2 * MANY if many == frame(9) else refusal * MANY
        sender = threading.Thread(target=wire.sendall, args=(first + many * MANY + last,))
        sender.start()
        received = 0
        while received < expected:
            received += len(wire.recv(1 << 20))
        sender.join()
        assert httpx.get(f"{url}/health").status_code == 200
    assert received == expected
    assert max(at_once) <= PIECE // len(many) + 1


def test_frames_that_arrive_in_one_go_are_answered_in_order() -> None:
    steps = 2_000
    with serving(Held) as url, connect(url.replace("http", "ws") + "/ws", max_size=None) as client:
        client.send('{"type":"reset","data":{}}')
        client.recv(PATIENCE_S)
        actions = ({"type": "call_tool", "tool_name": "add", "arguments": {"by": number}} for number in range(steps))
        data = b"".join(frame(1, json.dumps({"type": "step", "data": action}).encode()) for action in actions)
        sender = threading.Thread(target=client.socket.sendall, args=(data,))
        sender.start()
        replies = [json.loads(client.recv(PATIENCE_S)) for _ in range(steps)]
        sender.join()
    assert [reply["data"]["observation"]["result"]["data"] for reply in replies] == list(range(steps))


# -- web pages


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extension("workers"))])
def test_agents_cannot_take_all_sessions_from_who_has_the_token(workers: int) -> None:
    config = ServerConfig(control_token="the-token-of-this-test", max_concurrent_envs=4, queue_timeout_s=0)
    with serving(Held, config, workers=workers) as url, ExitStack() as stack:
        refused: list[bool] = []
        for _ in range(6):  # clients that never leave
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
            answer = httpx.post(f"{url}/mcp", json=message, headers=ACCEPT)
            headers = {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
            add = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {}}}
            said = httpx.post(f"{url}/mcp", json=add, headers=headers).text
            refused.append("agents use their 3 of 4 sessions" in said)
        assert refused == [False] * 3 + [True] * 3
        env = stack.enter_context(EnvClient(url, token="the-token-of-this-test", capacity_timeout_s=0).sync())
        env.reset()


@pytest.mark.parametrize("letter", ["x", "ä"])
def test_a_result_that_its_client_does_not_take_is_an_error_of_that_call_alone(letter: str) -> None:
    with serving(Held) as url, EnvClient(url, max_message_bytes=100_000).sync() as env:
        env.reset()
        assert env.call_tool("repeat", {"text": letter * 10}).text == letter * 10
        with pytest.raises(ReplyGone, match=r"ran, but its answer has \d+ bytes, and this client takes 100000"):
            env.call_tool("repeat", {"text": letter * 60_000})
        assert env.call_tool("add").text == "1"
        assert env.state().step_count == 3
