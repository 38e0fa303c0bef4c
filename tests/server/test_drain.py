"""The drain of a server: at SIGTERM, running episodes come to their end, and nothing new begins."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Process, started, write
from fastmcp import Client
from websockets.sync.client import connect

from mcpenv_client import EnvClient

WORLD = """
import os
import time

from mcpenv import MCPEnvironment


class World(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add() -> int:
            self.count += 1
            return self.count

        @self.tool
        def wait() -> int:
            open("waiting", "w").close()
            while not os.path.exists("go on"):
                time.sleep(0.01)
            return self.count

        @self.tool(terminal=True)
        def finish() -> int:
            return self.count

    def score(self, call, outcome):
        return 1.0 if call.name == "finish" else None
"""


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[Process, str]]:
    write(folder, "world", WORLD)
    with started(folder, "run", "world", "--port", "0", "--record", "records", *options) as process:
        yield process, process.url()


async def not_ready(url: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(base_url=url) as http:
        while (await http.get("/ready")).status_code != 503:
            await asyncio.sleep(0.01)


async def play(url: str, begun: asyncio.Semaphore, go_on: asyncio.Event) -> tuple[int, float | None]:
    """An episode that an agent plays at its address, and whose end the orchestrator reads."""
    async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
        mcp_url = (await env.reset()).info["mcp_url"]
        await env.call_tool("add", {})
        begun.release()
        await go_on.wait()
        await env.call_tool("add", {})
        async with Client(mcp_url) as agent:  # connects during the drain
            await agent.call_tool("add", {})
        result = await env.call_tool("finish", {})
        trajectory = await env.trajectory()
        return len(trajectory.steps), result.reward


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_at_sigterm_every_running_episode_comes_to_its_end(tmp_path: Path, workers: int) -> None:
    async def main(process: Process, url: str) -> None:
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()
        playing = [asyncio.ensure_future(play(url, begun, go_on)) for _ in range(16)]
        for _ in playing:
            await begun.acquire()
        process.popen.send_signal(signal.SIGTERM)
        await not_ready(url)
        while "".join(process.err).count("draining: waiting") < workers:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=url) as http:
            for _ in range(4):
                assert (await http.post("/reset", json={})).json()["code"] == "CAPACITY_REACHED"
        await asyncio.sleep(1.0)  # longer than a drain of steps alone
        go_on.set()
        assert await asyncio.gather(*playing) == [(4, 1.0)] * 16

    with served(tmp_path, "--workers", str(workers), "--drain-s", "60") as (process, url):
        asyncio.run(main(process, url))
        assert process.end() == 0
    said = "".join(process.err)
    assert said.count("draining: waiting up to 60 s for the episodes of") == workers
    assert said.count("draining: all episodes ended after") == workers


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_drain_ends_at_its_limit(tmp_path: Path, workers: int) -> None:
    with (
        served(tmp_path, "--workers", str(workers), "--drain-s", "1") as (process, url),
        connect(url.replace("http", "ws") + "/ws") as socket,
    ):
        socket.send('{"type": "reset"}')
        socket.recv(TIMEOUT_S)
        assert process.end(signal.SIGTERM) == 0
    said = "".join(process.err)
    assert "draining: waiting up to 1 s for the episodes of 1 session: " in said
    assert "draining: 1 episodes did not end within 1 s" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "signals"),
    [(1, [signal.SIGINT]), (2, [signal.SIGTERM, signal.SIGINT]), (1, [signal.SIGTERM, signal.SIGINT])],
)
def test_ctrl_c_does_not_wait_for_episodes(tmp_path: Path, workers: int, signals: list[signal.Signals]) -> None:
    with (
        served(tmp_path, "--workers", str(workers), "--drain-s", "600") as (process, url),
        connect(url.replace("http", "ws") + "/ws") as socket,
    ):
        socket.send('{"type": "reset"}')
        socket.recv(TIMEOUT_S)
        process.popen.send_signal(signals[0])
        for number in signals[1:]:
            process.wait_for("draining: waiting")
            process.popen.send_signal(number)
        assert process.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_twenty_signals_are_one(tmp_path: Path, workers: int, number: signal.Signals) -> None:
    async def main(process: Process, url: str) -> None:
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()
        playing = asyncio.ensure_future(play(url, begun, go_on))
        await begun.acquire()
        for _ in range(20):
            process.popen.send_signal(number)
            await asyncio.sleep(0.02)
        await not_ready(url)
        go_on.set()
        assert await playing == (4, 1.0)
        while process.popen.poll() is None:  # also in the last moments of the process
            process.popen.send_signal(number)
            await asyncio.sleep(0.001)

    with served(tmp_path, "--workers", str(workers), "--drain-s", "60") as (process, url):
        asyncio.run(main(process, url))
        assert process.end() == 0
    said = "".join(process.err)
    assert said.count(f"{number.name}: this server takes no new sessions, and ends") == 1
    assert said.count("this server has ended") == 1


@pytest.mark.slow
def test_during_a_drain_an_episode_cannot_begin_and_a_lost_client_comes_back(tmp_path: Path) -> None:
    headers = {"Mcpenv-Session-Id": "chosen-session-id", "Mcpenv-Session-Token": "secret-of-this-one"}
    with served(tmp_path, "--drain-s", "60", "--resume-grace-s", "30") as (process, url):
        address = url.replace("http", "ws") + "/ws"
        with connect(address, additional_headers=headers) as socket:
            socket.send('{"type": "reset"}')
            socket.recv(TIMEOUT_S)
            process.popen.send_signal(signal.SIGTERM)
            asyncio.run(not_ready(url))
            socket.send('{"type": "reset"}')
            assert json.loads(socket.recv(TIMEOUT_S))["data"]["code"] == "CAPACITY_REACHED"
            socket.socket.close()
        with connect(f"{address}?resume=1", additional_headers=headers) as socket:
            for name in ("add", "finish"):
                action: dict[str, object] = {"type": "call_tool", "tool_name": name, "arguments": {}}
                socket.send(json.dumps({"type": "step", "data": action}))
                reply = json.loads(socket.recv(TIMEOUT_S))
            assert reply["data"]["done"]
        assert process.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_agent_that_lists_tools_after_its_answer_gets_them_though_the_server_ends(
    tmp_path: Path, era: Any, workers: int
) -> None:
    """FastMCP's client does so to read a structured result. It has a second."""

    async def main(process: Process, url: str) -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(f"{url}/mcp", mode=era) as agent:
            await agent.call_tool("add", {})  # what a client does once takes its time
            answer = asyncio.ensure_future(agent.call_tool("wait", {}))
            while not (tmp_path / "waiting").exists():
                await asyncio.sleep(0.01)
            process.popen.send_signal(signal.SIGTERM)
            await not_ready(url)
            (tmp_path / "go on").touch()
            assert (await answer).data == 1
            assert len(await agent.list_tools()) == 3
        assert await asyncio.to_thread(process.popen.wait, TIMEOUT_S) == 0

    with served(tmp_path, "--workers", str(workers)) as (process, url):
        asyncio.run(main(process, url))
