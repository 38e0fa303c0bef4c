"""The endpoint ``/mcp`` in both eras, beside FastMCP alone and verifiers' tool server.

Requests are those of ``fastmcp.Client``. It asks for progress and log messages with every call, which mcpenv serves by
the transport that can stream them. A client that does not ask for them is served by the other one. Both are measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

from .control import posting
from .effort import Effort
from .load import HTTPConnection, Work, closing, drive, frame, open_http, open_websocket, post
from .peers import python_of
from .rows import OURS, Row, Side, compare
from .serving import SIDES, Server, mcpenv, serve, together
from .steps import RESET, ROOM, clients

TUNED, USUAL, VERIFIERS = "FastMCP tuned", "FastMCP", "verifiers 0.4"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
MANY = 100
EPISODE_CALLS = 10
"""Calls of an agent in an episode."""

_WHO = {"name": "benchmarks", "version": "1"}


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a client.

    Attributes:
        mark: a text that every right answer contains.
        progress: True if it asks for progress and log messages.
    """

    name: str
    method: str
    params: dict[str, Any]
    mark: bytes
    progress: bool = False


CALL = Request("tools/call", "tools/call", {"name": "add", "arguments": {"by": 1}}, b'"isError":false')
FOLLOWED = Request("tools/call with progress", CALL.method, CALL.params, CALL.mark, progress=True)
LIST = Request("tools/list", "tools/list", {}, b'"inputSchema"')


def run(effort: Effort) -> list[Row]:
    """Measure calls of an async and of a sync tool, with 1 and with 100 tools, listings, and episodes with an agent."""
    busy = effort.loads[-1] if len(effort.loads) < 3 else effort.loads[1]
    loads = effort.loads[:2]
    return [
        *_beside(
            effort,
            1,
            "async",
            [
                *((MODERN, CALL, load) for load in loads),
                (MODERN, FOLLOWED, busy),
                *((HANDSHAKE, CALL, load) for load in loads),
                (MODERN, LIST, loads[0]),
                (HANDSHAKE, LIST, loads[0]),
            ],
        ),
        *_beside(effort, 1, "sync", [(era, CALL, load) for era in (MODERN, HANDSHAKE) for load in loads]),
        *_beside(
            effort,
            MANY,
            "async",
            [
                (MODERN, CALL, busy),
                (HANDSHAKE, CALL, busy),
                (MODERN, LIST, loads[0]),
                (HANDSHAKE, LIST, loads[0]),
            ],
        ),
        *_with_agents(effort, loads),
    ]


def _beside(effort: Effort, tools: int, kind: str, wanted: list[tuple[str, Request, int]]) -> list[Row]:
    """Return rows of servers that have so many tools, of which the called one is async or sync."""
    with ExitStack() as stack:
        servers = {
            OURS: _ours(tools, kind),
            TUNED: fastmcp(tools, kind, "tuned"),
            USUAL: fastmcp(tools, kind, "usual"),
            VERIFIERS: verifiers(tools, kind),
        }
        return drive(_rows(together(stack, servers), effort, tools, kind, wanted))


def verifiers(tools: int, kind: str) -> AbstractContextManager[Server]:
    """Start a tool server of verifiers'."""
    return serve([python_of("verifiers-0.4.0"), SIDES / "verifiers_tools.py", str(tools), kind])


def _ours(tools: int, kind: str) -> AbstractContextManager[Server]:
    settings = ["--set", f"tools={tools}", "--set", f"sync={str(kind == 'sync').lower()}"]
    return mcpenv(SIDES / "mcpenv_mcp.py", "--max-sessions", str(ROOM), *settings)


def fastmcp(tools: int, kind: str, tuning: str) -> AbstractContextManager[Server]:
    """Start FastMCP alone; ``tuning`` is "usual" or "tuned"."""
    return serve([sys.executable, SIDES / "fastmcp_tools.py", str(tools), kind, tuning])


async def _rows(
    servers: dict[str, Server], effort: Effort, tools: int, kind: str, wanted: list[tuple[str, Request, int]]
) -> list[Row]:
    rows = []
    for era, request, load in wanted:
        async with AsyncExitStack() as stack:
            sides = {
                name: await _asking(stack, server, f"{server.base}/mcp", era, request, load)
                for name, server in servers.items()
            }
            what = f"{request.name}, {kind} tool" if request.method == CALL.method else request.name
            count = "1 tool" if tools == 1 else f"{tools} tools"
            rows.append(await compare(f"/mcp {era} {what}, {count}", clients(load), sides, effort))
    return rows


async def _asking(stack: AsyncExitStack, server: Server, url: str, era: str, request: Request, load: int) -> Side:
    connections = [await open_http(url) for _ in range(load)]
    await stack.enter_async_context(closing(connections))
    asked = [await opened(connection, url, era, request) for connection in connections]
    return posting(server, connections, asked, request.mark)


async def opened(connection: HTTPConnection, url: str, era: str, request: Request) -> bytes:
    """Return the request in the form of that era, after a handshake if the era has one."""
    if era == MODERN:
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": _WHO,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        if request.progress:
            meta |= {"io.modelcontextprotocol/logLevel": "debug", "progressToken": 2}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": request.method}
        if "name" in request.params:
            headers["mcp-name"] = request.params["name"]
        return post(url, _rpc(request.method, {**request.params, "_meta": meta}), headers)
    hello = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _WHO}
    await connection.ask(post(url, _rpc("initialize", hello)), b'"serverInfo"')
    headers = {"mcp-protocol-version": HANDSHAKE}
    if "mcp-session-id" in connection.headers:  # verifiers' sessions last for a request
        headers["mcp-session-id"] = connection.headers["mcp-session-id"]
    await connection.ask(post(url, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', headers))
    meta = {"progressToken": 2} if request.progress else {}
    params = {**request.params, **({"_meta": meta} if meta else {})}
    return post(url, _rpc(request.method, params), headers)


def _rpc(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 2, "method": method, "params": params}).encode()


def _with_agents(effort: Effort, loads: tuple[int, ...]) -> list[Row]:
    """Measure episodes: an orchestrator resets and waits, and an agent makes all calls at the episode's address."""
    settings = ["--max-sessions", str(ROOM), "--set", f"max_steps={EPISODE_CALLS}"]
    with ExitStack() as stack:
        ours = stack.enter_context(mcpenv(SIDES / "mcpenv_tools.py", *settings))
        alone = stack.enter_context(fastmcp(1, "async", "tuned"))
        return drive(_episodes(ours, alone, effort, loads))


async def _episodes(ours: Server, alone: Server, effort: Effort, loads: tuple[int, ...]) -> list[Row]:
    rows = []
    for load in loads:
        async with AsyncExitStack() as stack:
            works = [await _orchestrated(stack, ours) for _ in range(load)]
            calls = [await _unattended(stack, alone) for _ in range(load)]
            sides = {OURS: Side(ours, works), f"{TUNED}, the calls alone": Side(alone, calls)}
            path = f"an episode: reset, {EPISODE_CALLS} calls of an agent at its /mcp ({MODERN}), the end"
            rows.append(await compare(path, clients(load), sides, effort))
    return rows


async def _orchestrated(stack: AsyncExitStack, server: Server) -> Work:
    socket, agent = await open_websocket(server.ws), await open_http(server.base)
    await stack.enter_async_context(closing([socket, agent]))
    wait = frame(b'{"type":"wait","data":{}}')

    async def episode() -> None:
        url = json.loads(await socket.ask(RESET))["data"]["info"]["mcp_url"]
        call = await opened(agent, url, MODERN, CALL)
        ending = asyncio.ensure_future(socket.ask(wait, b'"truncated":true'))
        for _ in range(EPISODE_CALLS):
            await agent.ask(call, CALL.mark)
        await ending

    return _again(episode)


async def _unattended(stack: AsyncExitStack, server: Server) -> Work:
    agent = await open_http(server.base)
    await stack.enter_async_context(closing([agent]))
    call = await opened(agent, f"{server.base}/mcp", MODERN, CALL)

    async def calls() -> None:
        for _ in range(EPISODE_CALLS):
            await agent.ask(call, CALL.mark)

    return _again(calls)


def _again(once: Callable[[], Awaitable[None]]) -> Work:
    """Repeat a request until that time."""

    async def work(until: float, latencies: list[float]) -> None:
        while True:
            began = time.perf_counter()
            await once()
            ended = time.perf_counter()
            latencies.append(ended - began)
            if ended > until:
                return

    return work
