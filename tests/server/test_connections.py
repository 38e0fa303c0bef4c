"""Handshake connections end with the episode or session that they were opened for; many of them harm nobody else."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from fault_bench import modern

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.mcp import connections
from mcpenv.server.mcp.connections import MAX_PER_HANDLE
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.server.serve import serving
from mcpenv.server.sessions import handles

TIMEOUT_S = 30
HEADERS = {"Accept": "application/json, text/event-stream"}
TOKEN = "the-token-of-ada"


class World(MCPEnvironment):
    """Counts, and holds calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate, inside = threading.Event(), threading.Event()

    def __init__(self) -> None:
        self.count = 0

        @self.tool(concurrent=True)
        async def add() -> int:
            """Count."""
            self.count += 1
            return self.count

        @self.tool(concurrent=True)
        def hold() -> str:
            """Wait for the gate."""
            self.inside.set()
            self.gate.wait(TIMEOUT_S)
            return "held"


class Raw:
    """Handshake MCP over plain HTTP, a request at a time."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.ids = itertools.count()
        self.listening: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def open(self, url: str) -> str:
        """A new connection's id."""
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        response = await self.post(url, None, "initialize", client)
        assert response.status_code == 200
        return response.headers["mcp-session-id"]

    async def post(self, url: str, connection: str | None, method: str, params: Any = None) -> httpx.Response:
        """A request."""
        headers = HEADERS if connection is None else {**HEADERS, "Mcp-Session-Id": connection}
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params or {}}
        return await self.http.post(url, json=body, headers=headers)

    async def status(self, url: str, connection: str) -> int:
        """Return the answer to a ping on the connection."""
        return (await self.post(url, connection, "ping")).status_code

    async def call(self, url: str, connection: str, name: str) -> httpx.Response:
        """Return the body of a tool call."""
        return await self.post(url, connection, "tools/call", {"name": name, "arguments": {}})

    async def listen(self, url: str, connection: str) -> None:
        """Return when the server ends the stream of a connection."""
        headers = {"Accept": "text/event-stream", "Mcp-Session-Id": connection}
        async with self.http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200
            self.listening[connection].set()
            async for _ in response.aiter_bytes():
                pass

    async def until_gone(self, url: str, connection: str) -> None:
        """Return when the connection is no more."""
        while await self.status(url, connection) != 404:
            await asyncio.sleep(0)


@asynccontextmanager
async def raw(url: str, token: str | None = None) -> AsyncIterator[Raw]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
        yield Raw(http)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles of past episodes are forgotten at once."""
    monkeypatch.setattr(handles, "GRACE_S", 0.0)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("token", [None, TOKEN])
def test_when_an_episodes_address_is_no_more_so_are_the_connections_opened_there(token: str | None) -> None:
    async def main(url: str) -> None:
        async with raw(url, token) as client:
            first = (await client.http.post("/reset")).json()
            second = (await client.http.post("/reset")).json()
            here, there = [each["info"]["mcp_url"] for each in (first, second)]
            mine, also_mine = await client.open(here), await client.open(here)
            theirs, plain = await client.open(there), await client.open("/mcp")
            assert (await client.call(here, mine, "add")).status_code == 200
            streams = [asyncio.create_task(client.listen(here, each)) for each in (mine, also_mine)]
            await asyncio.gather(*(client.listening[each].wait() for each in (mine, also_mine)))
            await client.http.delete(f"/sessions/{first['session_id']}")
            # The address answers 404 to all now; that the connections have ended, too, shows in their streams.
            await asyncio.gather(*streams)
            assert [await client.status(where, each) for where, each in ((there, theirs), ("/mcp", plain))] == [
                200,
                200,
            ]

    with serving(World, auth=AgentTokens({"ada": TOKEN}) if token else None) as url:
        run(main(url))


def test_an_agent_that_opens_very_many_connections_loses_its_own_and_nobody_elses() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            here, there = [(await client.http.post("/reset")).json()["info"]["mcp_url"] for _ in range(2)]
            theirs = await client.open(there)
            first, second = await client.open(here), await client.open(here)
            held = asyncio.create_task(client.call(here, first, "hold"))
            await asyncio.to_thread(World.inside.wait, TIMEOUT_S)
            rest = [await client.open(here) for _ in range(MAX_PER_HANDLE - 2)]
            assert await client.status(here, second) == 200
            rest += [await client.open(here) for _ in range(2)]
            for gone in rest[:2]:
                await client.until_gone(here, gone)
            assert [await client.status(here, each) for each in (first, second, *rest[2:])] == [200] * MAX_PER_HANDLE
            assert await client.status(there, theirs) == 200
            World.gate.set()
            assert "held" in (await held).text

    with serving(World) as url:
        run(main(url))


def test_at_the_common_address_the_connection_not_used_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_PLAIN", 3)

    async def main(url: str) -> None:
        async with raw(url) as client:
            at_an_episode = (await client.http.post("/reset")).json()["info"]["mcp_url"]
            agent = await client.open(at_an_episode)
            first, second, third = [await client.open("/mcp") for _ in range(3)]
            assert await client.status("/mcp", first) == 200
            fourth = await client.open("/mcp")
            await client.until_gone("/mcp", second)
            assert [await client.status("/mcp", each) for each in (first, third, fourth)] == [200] * 3
            assert await client.status(at_an_episode, agent) == 200

    with serving(World) as url:
        run(main(url))


def test_a_connection_ended_by_its_client_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_PLAIN", 2)

    async def main(url: str) -> None:
        async with raw(url) as client:
            first, second = [await client.open("/mcp") for _ in range(2)]
            await client.http.delete("/mcp", headers={"Mcp-Session-Id": second})
            third = await client.open("/mcp")
            assert [await client.status("/mcp", each) for each in (first, second, third)] == [200, 404, 200]

    with serving(World) as url:
        run(main(url))


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_connection_whose_session_was_ended_does_not_slide_into_a_new_one(token: str | None) -> None:
    async def main(url: str) -> None:
        async with raw(url, token) as client:
            mine, other = [await client.open("/mcp") for _ in range(2)]
            assert '"text":"1"' in (await client.call("/mcp", mine, "add")).text
            assert '"text":"1"' in (await client.call("/mcp", other, "add")).text
            session, _ = (await client.http.get("/sessions")).json()["sessions"]
            await client.http.delete(f"/sessions/{session['session_id']}")
            await client.until_gone("/mcp", mine)
            assert '"text":"2"' in (await client.call("/mcp", other, "add")).text

    with serving(
        World, ServerConfig(session_scope="connection"), auth=AgentTokens({"ada": TOKEN}) if token else None
    ) as url:
        run(main(url))


@pytest.mark.parametrize("auth", [None, AgentTokens({"ada": TOKEN})])
def test_fastmcps_transport_is_found_and_its_limit_lifted(auth: AgentTokens | None) -> None:
    app = FastMCP("server", auth=auth).http_app(path=connections.RESOURCE)
    found = connections.HandshakeConnections(app)

    async def main() -> None:
        async with app.lifespan(app):
            manager = found._transport.session_manager
            assert manager is not None and manager.max_sessions is not None
            found.lift_limit()
            assert manager.max_sessions is None

    run(main())


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_the_largest_request_is_as_large_as_the_server_says(version: str) -> None:
    async def main(url: str, size: int) -> set[int]:
        statuses = set()
        body, headers = modern("tools/call", {"name": "add", "arguments": {"text": "x" * size}})
        async with raw(url) as client:
            for address in ("/mcp", (await client.http.post("/reset")).json()["info"]["mcp_url"]):
                if version == "2026-07-28":
                    response = await client.http.post(address, json=body, headers=headers)
                else:
                    response = await client.post(address, await client.open(address), "tools/call", body["params"])
                statuses.add(response.status_code)
        return statuses

    with serving(World, ServerConfig(max_message_bytes=3000)) as url:
        assert asyncio.run(main(url, 1500)) == {200}
        assert asyncio.run(main(url, 3000)) == {413}
    with serving(World, ServerConfig(max_message_bytes=8 * 1024 * 1024)) as url:
        assert asyncio.run(main(url, 6 * 1024 * 1024)) == {200}
