"""Pausing a session: calls of both planes wait, until it is resumed, its deadline passes, or it is closed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp import Client
from websockets.sync.client import ClientConnection, connect

from mcpenv import MCPEnvironment
from mcpenv.execution.concurrency.lock import Lock
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.server.sessions.operations import CallTool, Reset
from mcpenv.server.sessions.pause import Pause
from mcpenv.server.sessions.session import Origin

QUIET_S = 0.3
"""Seconds without an answer after which a call counts as waiting."""


class Count(MCPEnvironment):
    """A counter."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        async def add() -> int:
            """Count."""
            self.count += 1
            return self.count


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.extension("workers"))])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(Count, max_concurrent_envs=4, workers=request.param) as base_url:
        yield base_url


class Played:
    """An orchestrator's session."""

    def __init__(self, url: str, socket: ClientConnection) -> None:
        self._socket = socket
        self.send("reset", {})
        self.mcp_url = str(self.answer()["info"]["mcp_url"])
        (row,) = httpx.get(f"{url}/sessions").json()["sessions"]
        self.address = f"{url}/sessions/{row['session_id']}"

    def send(self, kind: str, data: dict[str, Any]) -> None:
        self._socket.send(json.dumps({"type": kind, "data": data}))

    def add(self) -> None:
        self.send("step", {"type": "call_tool", "tool_name": "add", "arguments": {}})

    def answer(self, timeout_s: float = 20) -> dict[str, Any]:
        reply = json.loads(self._socket.recv(timeout_s))
        return dict(reply["data"])

    def waits(self) -> bool:
        try:
            self.answer(QUIET_S)
        except TimeoutError:
            return True
        return False

    def info(self) -> dict[str, Any]:
        return dict(httpx.get(self.address).json())

    def post(self, verb: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.address}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
def played(url: str) -> Iterator[Played]:
    with connect(url.replace("http", "ws") + "/ws") as socket:
        yield Played(url, socket)


def test_a_call_waits_while_its_session_is_paused_and_runs_once_it_is_resumed(played: Played) -> None:
    paused = played.post("pause")
    assert paused["begun"] and 290 < paused["paused_until"] - time.time() <= 300
    played.add()
    assert played.waits()
    info = played.info()
    assert (info["step_count"], info["busy"], info["paused_until"]) == (0, True, paused["paused_until"])
    assert played.post("resume")["resumed"] is True
    assert played.answer()["done"] is False
    assert (played.info()["step_count"], played.info()["paused_until"]) == (1, None)
    assert played.post("resume")["resumed"] is False


def test_an_agent_waits_too(played: Played) -> None:
    async def act() -> None:
        async with asyncio.timeout(30), Client(played.mcp_url) as agent:
            await asyncio.to_thread(played.post, "pause")
            call = asyncio.create_task(agent.call_tool("add"))
            assert not (await asyncio.wait({call}, timeout=QUIET_S))[0]
            await asyncio.to_thread(played.post, "resume")
            assert (await call).data == 1

    asyncio.run(act())


def test_a_pause_ends_at_its_deadline_which_a_second_one_sets_anew(played: Played) -> None:
    played.post("pause", timeout_s=0.5)
    renewed = played.post("pause", timeout_s=1.2)
    began = time.time()
    played.add()
    assert played.answer()["done"] is False
    assert time.time() - began > 0.6
    assert renewed["paused_until"] <= time.time() + 0.1


def test_ending_a_paused_session_ends_the_calls_that_wait(played: Played) -> None:
    played.post("pause")
    played.add()
    assert played.waits()
    assert httpx.delete(played.address, timeout=20).json()["closed"] is True
    assert httpx.get(played.address).status_code == 404


def test_a_server_ends_although_a_session_is_paused() -> None:
    ended = threading.Event()

    def serve() -> None:
        with serving(Count) as url, connect(url.replace("http", "ws") + "/ws") as socket:
            Played(url, socket).post("pause", timeout_s=600)
        ended.set()

    threading.Thread(target=serve, daemon=True).start()
    assert ended.wait(20)


@pytest.mark.parametrize(
    "body", [{"timeout_s": 0}, {"timeout_s": "5"}, {"timeout_s": True}, {"timeout_s": 1e9}, {"x": 1}]
)
def test_a_deadline_that_is_none_is_refused(played: Played, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{played.address}/pause", json=body)
    assert answer.status_code == 422 and "at most 3600" in answer.json()["message"]


def test_pausing_needs_the_control_token_and_a_session() -> None:
    with serving(Count, ServerConfig(control_token="the-control-token")) as url:
        for verb in ("pause", "resume"):
            assert httpx.post(f"{url}/sessions/none/{verb}").status_code == 401
            headers = {"Authorization": "Bearer the-control-token"}
            answer = httpx.post(f"{url}/sessions/none/{verb}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (404, "SESSION_LOST")


def test_a_pause_begins_after_the_call_that_runs_and_before_later_ones() -> None:
    async def play() -> None:
        lock = Lock()
        await lock.acquire()
        pause = Pause(lock, time.time() + 60)
        later = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        assert not pause.begun
        lock.release()
        async with asyncio.timeout(20):
            while not pause.begun:
                await asyncio.sleep(0)
            assert not later.done()
            pause.resume()
            await later

    asyncio.run(play())


def test_a_pause_that_is_ended_before_it_began_leaves_the_lock_free() -> None:
    async def play() -> None:
        lock = Lock()
        await lock.acquire()
        pause = Pause(lock, time.time() + 60)
        await asyncio.sleep(0)
        pause.resume()
        lock.release()
        async with asyncio.timeout(20):
            await lock.acquire()

    asyncio.run(play())


class Stuck(MCPEnvironment):
    """A world with a tool that cannot be stopped."""

    def __init__(self) -> None:
        @self.tool
        def hang() -> None:
            """Hang."""
            RELEASED.wait(30)

        @self.tool
        def add() -> int:
            """Count."""
            return 1


RELEASED = threading.Event()


def test_a_new_instance_of_a_paused_session_is_paused_too() -> None:
    async def play() -> None:
        server = EnvServer(Stuck, config=ServerConfig(session_timeout_s=60))
        async with asyncio.timeout(30), server.running():
            session = await server.pool.open(Origin.HTTP)
            reset = Reset.from_wire({}, session)
            await reset.run(session)
            await CallTool("hang", {}, 0.05).run(session)
            session.hold_up(time.time() + 60)
            stuck = session.execution
            again = asyncio.create_task(reset.run(session))
            assert not (await asyncio.wait({again}, timeout=QUIET_S))[0]
            assert session.execution is not stuck and session.paused_until is not None
            session.resume()
            await again
            RELEASED.set()

    asyncio.run(play())
