"""Urgent frames: answered beside a step, and not without end for a client that does not read."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
import struct
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

from mcpenv import MCPEnvironment, Trajectory
from mcpenv.server.control.concurrent_frames import UrgentFrames
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

PAGE = "0123456789" * 20_000
FRAMES = 100


class Pages(MCPEnvironment):
    """Long pages."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    began, cancelled = threading.Event(), threading.Event()

    def __init__(self) -> None:
        @self.tool
        async def wait() -> str:
            """Wait for long."""
            Pages.began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                Pages.cancelled.set()
                raise
            return "over"

        @self.tool
        async def read() -> str:
            """Read a page."""
            return PAGE

        @self.tool
        async def end() -> str:
            """End the episode."""
            self.finish(1.0)
            return "over"


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Pages) as url:
        yield url


def ask(socket: ClientConnection, kind: str, data: dict[str, Any], request_id: str | None = None) -> None:
    named = {} if request_id is None else {"request_id": request_id}
    socket.send(json.dumps({"type": kind, "data": data, **named}))


def call(socket: ClientConnection, tool: str) -> dict[str, Any]:
    ask(socket, "step", {"type": "call_tool", "tool_name": tool, "arguments": {}})
    return answer(socket)


def answer(socket: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(socket.recv(30))
    return reply


@pytest.mark.parametrize("named", [True, False])
def test_trajectories_that_a_client_asks_for_and_does_not_read_are_not_made(
    url: str, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    to_plain, made = Trajectory.to_plain, list[int]()

    def noted(trajectory: Trajectory) -> dict[str, Any]:
        made.append(len(trajectory.steps))
        return to_plain(trajectory)

    monkeypatch.setattr(Trajectory, "to_plain", noted)
    socket_url = url.replace("http", "ws") + "/ws"
    with connect(socket_url, max_size=None, compression=None, max_queue=1) as socket:
        ask(socket, "reset", {})
        answer(socket)
        call(socket, "read")
        for number in range(FRAMES):
            ask(socket, "trajectory", {}, f"frame {number}" if named else None)
        with EnvClient(url).sync() as other:  # nobody else is held up
            other.reset()
            assert other.call_tool("end").done
        assert len(made) < FRAMES // 2
        answers = [answer(socket) for _ in range(FRAMES)]
        assert {each["type"] for each in answers} == {"trajectory"} and made == [1] * FRAMES
        assert all(len(each["data"]["steps"]) == 1 for each in answers)
        if named:
            assert [each["request_id"] for each in answers] == [f"frame {number}" for number in range(FRAMES)]
        assert call(socket, "end")["data"]["done"]


def test_a_trajectory_that_was_asked_for_behind_a_step_is_answered_behind_it(url: str) -> None:
    with connect(url.replace("http", "ws") + "/ws", max_size=None, compression=None) as socket:
        ask(socket, "reset", {})
        ask(socket, "step", {"type": "call_tool", "tool_name": "end", "arguments": {}})
        ask(socket, "trajectory", {})
        assert [answer(socket)["type"] for _ in range(3)] == ["observation", "observation", "trajectory"]


def test_without_an_episode_there_is_no_trajectory(url: str) -> None:
    with connect(url.replace("http", "ws") + "/ws", compression=None) as socket:
        ask(socket, "trajectory", {}, "early")
        refused = answer(socket)
        assert refused["type"] == "error" and refused["request_id"] == "early"
        assert refused["data"]["message"] == "there is no episode yet; reset first"


def test_more_waits_than_a_session_may_have_are_refused_and_the_others_end_with_the_episode(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpenv.server.control.concurrent_frames.MAX_UNDER_WAY", 3)
    with connect(url.replace("http", "ws") + "/ws", compression=None) as socket:
        ask(socket, "reset", {})
        answer(socket)
        for number in range(5):
            ask(socket, "wait", {}, str(number))
        refused = [answer(socket) for _ in range(2)]
        assert [(each["request_id"], each["type"], each["data"]["code"]) for each in refused] == [
            ("3", "error", "RATE_LIMITED"), ("4", "error", "RATE_LIMITED"),
        ]  # fmt: skip
        ask(socket, "step", {"type": "call_tool", "tool_name": "end", "arguments": {}}, "end")
        ended = [answer(socket) for _ in range(4)]
        assert sorted(each["request_id"] for each in ended) == ["0", "1", "2", "end"]
        assert all(each["data"]["done"] for each in ended)


def masked(kind: str, data: dict[str, Any], **named: str) -> bytes:
    payload = json.dumps({"type": kind, "data": data, **named}).encode()
    assert len(payload) < 126
    return bytes((0x81, 0x80 | len(payload), 0, 0, 0, 0)) + payload


def read_frame(wire: Any) -> bytes:
    (size,) = wire.read(2)[1:]
    if size >= 126:
        size = int.from_bytes(wire.read(2 if size == 126 else 8), "big")
    found: bytes = wire.read(size)
    return found


def test_a_client_that_reads_no_answers_and_leaves_ends_the_step_that_it_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, crowded = UrgentFrames.room, threading.Event()

    async def noted(frames: UrgentFrames) -> None:
        if frames.crowded:
            crowded.set()
        await room(frames)

    monkeypatch.setattr(UrgentFrames, "room", noted)
    address = urlsplit(url)
    with (
        sockets.create_connection((address.hostname or "", address.port or 0), 30) as bare,
        bare.makefile("rb") as wire,
    ):
        bare.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while wire.readline() != b"\r\n":
            pass
        for frame in (masked("reset", {}), masked("step", {"type": "call_tool", "tool_name": "read"})):
            bare.sendall(frame)
            assert b'"observation"' in read_frame(wire)
        Pages.began.clear()
        Pages.cancelled.clear()
        bare.sendall(masked("step", {"type": "call_tool", "tool_name": "wait"}))
        assert Pages.began.wait(30)
        for number in range(FRAMES):
            bare.sendall(masked("trajectory", {}, request_id=str(number)))
        assert crowded.wait(30)
        bare.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))  # to close is to reset
    assert Pages.cancelled.wait(30)
