"""The sessions of the page Play: they outlive their socket, and give way to clients that wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect
from worlds import World

from mcpenv import Context, MCPEnvironment
from mcpenv.extensions.console import play_sessions
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient


class Slow(MCPEnvironment):
    """Wait, and say so. One session at a time."""

    SURVIVES_TIMEOUT = True

    def __init__(self) -> None:
        @self.tool
        async def wait(context: Context) -> str:
            await context.report_progress(1, 2, "half")
            await asyncio.Event().wait()
            return "never"


@pytest.fixture(scope="module", params=[1, 2])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(World, ServerConfig(console=True), max_concurrent_envs=8, workers=request.param) as url:
        yield url


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline


def opened(url: str) -> str:
    return str(httpx.post(f"{url}/console/api/sessions", json={}, timeout=30).raise_for_status().json()["session_id"])


def joined(url: str, session_id: str) -> ClientConnection:
    return connect(f"{url.replace('http', 'ws', 1)}/ws?agent=console&session_id={session_id}")


def asked(socket: ClientConnection, kind: str, data: Any = None) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "request_id": kind, **({} if data is None else {"data": data})}))
    frame: dict[str, Any] = json.loads(socket.recv(timeout=30))
    assert frame["type"] != "error", frame
    return frame["data"]  # type: ignore[no-any-return]


def test_a_session_outlives_its_socket_on_each_worker(url: str) -> None:
    for _ in range(4):
        session = opened(url)
        with joined(url, session) as socket:
            episode = asked(socket, "reset", {})["info"]["episode_id"]
        with joined(url, session) as socket:
            assert asked(socket, "state")["episode_id"] == episode
        assert httpx.get(f"{url}/sessions/{session}/running").json() == {"logs": []}
        assert httpx.get(f"{url}/sessions/{session}").json()["agent"] == "console"
        httpx.delete(f"{url}/sessions/{session}").raise_for_status()


def test_a_session_that_was_left_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play_sessions, "KEPT_S", 0.2)
    monkeypatch.setattr(play_sessions, "LOOK_S", 0.05)
    with serving(World, ServerConfig(console=True), max_concurrent_envs=8) as url:
        session = opened(url)
        with joined(url, session) as socket:
            asked(socket, "reset", {})
        until(lambda: not httpx.get(f"{url}/sessions").json()["sessions"])


def test_the_only_session_gives_way_once_its_page_has_left() -> None:
    with serving(Slow, ServerConfig(console=True)) as url:
        session = opened(url)
        with joined(url, session) as socket:
            asked(socket, "reset", {})
        with EnvClient(url).sync() as other:
            other.reset()
            assert httpx.get(f"{url}/sessions/{session}").status_code == 404


def test_sessions_that_were_left_give_way_to_a_client_that_waits_for_any_worker() -> None:
    with serving(World, ServerConfig(console=True), max_concurrent_envs=2, workers=2) as url:
        for _ in range(2):
            with joined(url, opened(url)) as socket:
                asked(socket, "reset", {})
        with EnvClient(url).sync() as other:
            assert other.reset().info["episode_id"]


def test_the_log_of_a_running_call_is_told_and_the_call_is_cancelled() -> None:
    with serving(Slow, ServerConfig(console=True)) as url:
        session = opened(url)
        with joined(url, session) as socket:
            asked(socket, "reset", {})
            where = f"{url}/sessions/{session}/running"
            assert httpx.get(where).json() == {"logs": []}
            step = {"type": "call_tool", "tool_name": "wait", "arguments": {}}
            socket.send(json.dumps({"type": "step", "request_id": "s", "data": step}))
            until(lambda: httpx.get(where).json()["logs"])
            (entry,) = httpx.get(where).json()["logs"]
            assert entry == {"level": "progress", "message": "half", "progress": 1, "total": 2}
            socket.send(json.dumps({"type": "cancel", "request_id": "c", "data": {"request_id": "s"}}))
            answers = [json.loads(socket.recv(timeout=30)) for _ in range(2)]
            data = {answer["request_id"]: answer["data"] for answer in answers}
            assert data["c"] == {"cancelled": True} and data["s"]["code"] == "CANCELLED"
            assert httpx.get(where).json() == {"logs": []}


def test_only_the_control_plane_opens_sessions() -> None:
    with serving(World, ServerConfig(console=True, control_token="a-control-token")) as url:
        assert httpx.post(f"{url}/console/api/sessions", json={}).status_code == 401
        assert httpx.get(f"{url}/sessions/any/running").status_code == 401
