"""Clients that cancel, time out or disappear in the middle of a call: nobody else notices, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import fastmcp
import httpx
import pytest
from fastmcp import FastMCP
from fastmcp.client.transports import StdioTransport
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from mcpenv import MCPEnvironment, Mode, ToolCall, ToolOutcome
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

LIMIT_S = 60
IMPATIENT = 20
"""More than the instances that may be quarantined."""


class World(MCPEnvironment):
    """One number, and a sync tool that takes as long as the gate is closed."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate, inside = threading.Event(), threading.Event()
    scored = 0

    def __init__(self) -> None:
        self.number = 0
        self.add_tools(self.tool)

    def add_tools(self, tool: Callable[[Any], Any]) -> None:
        """Register the tools by a decorator."""

        @tool
        def put(number: int) -> int:
            """Set the number."""
            self.number = number
            return number

        @tool
        async def read() -> int:
            """Read the number."""
            return self.number

        @tool
        def slow() -> int:
            """Add one when the gate is open."""
            self.inside.set()
            self.gate.wait(LIMIT_S)
            self.number += 1
            return self.number

        @tool
        async def endless() -> int:
            """Return when it is cancelled: never."""
            self.inside.set()
            await asyncio.Event().wait()
            raise AssertionError

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        type(self).scored += call.name == "slow"
        return 1.0


class Mounted(World):
    """The same world, whose tools belong to a FastMCP server that is handed in."""

    def __init__(self) -> None:
        server: FastMCP = FastMCP("handed in")
        MCPEnvironment.__init__(self, server)
        self.number = 0
        self.add_tools(server.tool)


@pytest.fixture(autouse=True)
def _closed_gate() -> Any:
    World.gate.clear()
    World.inside.clear()
    World.scored = 0
    yield
    World.gate.set()


Call = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def stateless(url: str) -> AsyncIterator[Call]:
    """Open a client of 2026-07-28, whose calls are cancelled by closing their streams."""
    async with fastmcp.Client(url) as client:

        async def call(name: str, timeout_s: float | None = None, **arguments: Any) -> Any:
            return (await client.call_tool(name, arguments, timeout=timeout_s)).data

        yield call


@contextlib.asynccontextmanager
async def handshake(url: str) -> AsyncIterator[Call]:
    """Open a client of the handshake era, which sends ``notifications/cancelled`` at its timeout."""
    async with streamable_http_client(url) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()

        async def call(name: str, timeout_s: float | None = None, **arguments: Any) -> Any:
            result = await session.call_tool(name, arguments, read_timeout_seconds=timeout_s)
            assert not result.is_error, result
            return (result.structured_content or {})["result"]

        yield call


CLIENTS = {"2026-07-28": stateless, "handshake": handshake}
in_both_eras = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
own_and_mounted = pytest.mark.parametrize("world", [World, Mounted], ids=["own tools", "mounted server"])


async def until_inside() -> None:
    await asyncio.to_thread(World.inside.wait, LIMIT_S)
    World.inside.clear()


class Departures(logging.Handler):
    """The log entries that say that the server has noticed that a client left."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._noticed = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        if "a client left" in record.getMessage():
            self._noticed.release()

    async def one(self) -> None:
        assert await asyncio.to_thread(self._noticed.acquire, timeout=10), "the server noticed no departure"


@pytest.fixture
def departures(caplog: pytest.LogCaptureFixture) -> Any:
    handler, logger = Departures(), logging.getLogger("mcpenv")
    caplog.set_level(logging.INFO, "mcpenv")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def give_up(call: Call, name: str = "slow") -> None:
    """Make a call, and cancel it while its tool runs."""
    calling = asyncio.ensure_future(call(name))
    await until_inside()
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling


async def time_out(call: Call, name: str = "slow") -> None:
    """Make a call that takes longer than its client waits."""
    calling = asyncio.ensure_future(call(name, timeout_s=0.2))
    await until_inside()
    with pytest.raises(Exception, match=r"(?i)timed out"):
        await calling


def run(main: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(main, LIMIT_S))


@own_and_mounted
@in_both_eras
@pytest.mark.parametrize("leave", [give_up, time_out])
def test_a_call_of_a_client_that_left_runs_to_its_end_and_the_next_one_waits(
    world: type[MCPEnvironment], client: Any, leave: Any, departures: Departures
) -> None:
    async def main(url: str) -> None:
        async with stateless(url + "/mcp") as bystander, client(url + "/mcp") as call:
            mine = call if client is handshake else bystander
            await mine("put", number=7)
            await leave(call)
            await departures.one()
            reading = asyncio.ensure_future(mine("read"))
            World.gate.set()
            assert await reading == 8
            assert await mine("put", number=9) == 9

    with serving(world, mode="production") as url:
        run(main(url))


@own_and_mounted
@in_both_eras
def test_many_impatient_calls_leave_the_service_open(
    world: type[MCPEnvironment], client: Any, departures: Departures
) -> None:
    async def main(url: str) -> None:
        async with stateless(url + "/mcp") as bystander, client(url + "/mcp") as call:
            mine = call if client is handshake else bystander
            await mine("put", number=0)
            for _ in range(IMPATIENT):
                World.gate.clear()
                await give_up(call)
                await departures.one()
                World.gate.set()
            assert await mine("read") == IMPATIENT
            async with httpx.AsyncClient() as http:
                ready = await http.get(url + "/ready")
            assert ready.status_code == 200, ready.text

    with serving(world, mode="production") as url:
        run(main(url))


@own_and_mounted
@in_both_eras
def test_an_async_tool_ends_when_its_client_leaves(world: type[MCPEnvironment], client: Any) -> None:
    async def main(url: str) -> None:
        async with client(url + "/mcp") as call:
            await call("put", number=7)
            await give_up(call, "endless")
            assert await call("read") == 7

    with serving(world, mode="production") as url:
        run(main(url))


@in_both_eras
@pytest.mark.parametrize("leave", [give_up, time_out])
def test_in_an_episode_the_call_is_scored_once_and_the_agent_goes_on(
    client: Any, leave: Any, departures: Departures
) -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as env:
            mcp_url = (await env.reset()).info["mcp_url"]
            async with client(mcp_url) as call:
                await call("put", number=7)
                await leave(call)
                await departures.one()
                reading = asyncio.ensure_future(call("read"))
                World.gate.set()
                assert await reading == 8
            episode = await env.trajectory()
        assert [(step.call.name, step.outcome.error, step.done) for step in episode.steps] == [
            ("put", None, False),
            ("slow", None, False),
            ("read", None, False),
        ]
        assert World.scored == 1 and episode.total_reward == 3.0

    with serving(World) as url:
        run(main(url))


@own_and_mounted
def test_the_server_s_own_deadline_ends_the_instance_and_says_so(
    world: type[MCPEnvironment], caplog: pytest.LogCaptureFixture
) -> None:
    incidents: set[str] = set()

    async def main(url: str) -> None:
        async with stateless(url + "/mcp") as call:
            await call("put", number=7)
            calling = asyncio.ensure_future(call("slow"))
            await until_inside()
            waiting = asyncio.ensure_future(call("read"))
            for told in (calling, waiting):
                with pytest.raises(Exception, match=r"\(incident [0-9a-f]{8}\)") as refused:
                    await told
                incidents.add(str(refused.value).split("incident ")[1][:8])
            assert await call("read") == 0  # a new instance

    with serving(world, ServerConfig(mode=Mode.PRODUCTION, step_timeout_s=0.3)) as url:
        run(main(url))
    (logged,) = [record.getMessage() for record in caplog.records if "could not be stopped" in record.getMessage()]
    assert logged.startswith(f"incident {incidents.pop()}: ") and not incidents


STDIO = """
import time
from pathlib import Path
from mcpenv import MCPEnvironment

class World(MCPEnvironment):
    def __init__(self):
        self.number = 0

        @self.tool
        def put(number: int) -> int:
            self.number = number
            return number

        @self.tool
        def slow(inside: str, gate: str) -> int:
            Path(inside).touch()
            while not Path(gate).exists():
                time.sleep(0.01)
            self.number += 1
            return self.number
"""


@pytest.mark.extension("stdio")
@pytest.mark.process
def test_over_stdio_the_world_stays_when_a_call_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(STDIO)
    inside, gate = tmp_path / "inside", tmp_path / "gate"
    command = ["-m", "mcpenv", "run", str(tmp_path / "world.py"), "--transport", "stdio"]

    async def main() -> None:
        async with fastmcp.Client(StdioTransport(sys.executable, command)) as client:
            await client.call_tool("put", {"number": 7})
            with pytest.raises(Exception, match=r"(?i)timed out"):
                await client.call_tool("slow", {"inside": str(inside), "gate": str(gate)}, timeout=1)
            assert inside.exists()
            gate.touch()
            result = await client.call_tool("slow", {"inside": str(inside), "gate": str(gate)})
            assert result.data == 9

    run(main())
