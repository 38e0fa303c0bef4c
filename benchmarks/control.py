"""The control plane beside steps: sockets opened and reset, and steps over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial

from .effort import Effort
from .load import HTTPConnection, Work, closing, drive, open_http, open_websocket, post
from .peers import python_of
from .rows import OURS, Row, Side, compare
from .serving import SIDES, Server, floor, mcpenv, serve
from .steps import FLOOR, OPENENV, RESET, ROOM, clients, openenv

OPENREWARD = "openreward 0.1"

ACTION = {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}


def run(effort: Effort) -> list[Row]:
    """Under every load: connect and reset; a step in a session over HTTP; one in an episode of its own."""
    with ExitStack() as stack:
        servers = {
            OURS: stack.enter_context(mcpenv(SIDES / "mcpenv_tools.py", "--max-sessions", str(ROOM))),
            FLOOR: stack.enter_context(floor()),
            OPENENV: stack.enter_context(openenv()),
            OPENREWARD: stack.enter_context(
                serve([python_of("openreward-0.1.167"), SIDES / "openreward_tools.py"])
            ),
        }
        return drive(_rows(servers, effort))


async def _rows(servers: dict[str, Server], effort: Effort) -> list[Row]:
    rows = []
    for load in effort.loads:
        sides = {
            OURS: connecting(servers[OURS], servers[OURS].ws, load, b'"observation"'),
            FLOOR: connecting(servers[FLOOR], f"{servers[FLOOR].ws}?bytes=300", load, b""),
            OPENENV: connecting(servers[OPENENV], servers[OPENENV].ws, load, b'"observation"'),
        }
        rows.append(await compare("/ws connect + reset", clients(load), sides, effort))
    for load in effort.loads:
        rows.append(await _in_sessions(servers, load, effort))
    for load in effort.loads:
        async with AsyncExitStack() as stack:
            body = json.dumps({"action": ACTION}).encode()
            sides = {}
            for name in (OURS, FLOOR, OPENENV):
                connections = await _connections(stack, servers[name], load)
                url = f"{servers[name].base}/step" + ("?bytes=300" if name == FLOOR else "")
                mark = b"" if name == FLOOR else b'"reward":1.0'
                sides[name] = posting(servers[name], connections, [post(url, body)] * load, mark)
            rows.append(await compare("POST /step, an episode of its own", clients(load), sides, effort))
    return rows


async def _in_sessions(servers: dict[str, Server], load: int, effort: Effort) -> Row:
    """Each client has a session: mcpenv's and openreward's. OpenEnv has none over HTTP."""
    async with AsyncExitStack() as stack:
        sides = {}
        connections = await _connections(stack, servers[OURS], load)
        base, steps = servers[OURS].base, []
        for connection in connections:
            opened = json.loads(await connection.ask(post(f"{base}/reset", b"{}"), b'"session_id"'))
            body = {"action": ACTION, "session_id": opened["session_id"]}
            steps.append(post(f"{base}/step", json.dumps(body).encode()))
        sides[OURS] = posting(servers[OURS], connections, steps, b'"reward":1.0')

        size = len(await connections[0].ask(steps[0], b'"reward":1.0'))
        floor_url = f"{servers[FLOOR].base}/step?bytes={size}"
        in_floor = await _connections(stack, servers[FLOOR], load)
        sides[FLOOR] = posting(servers[FLOOR], in_floor, [post(floor_url, b"{}")] * load, b"")

        connections = await _connections(stack, servers[OPENREWARD], load)
        base, steps = servers[OPENREWARD].base, []
        for connection in connections:
            session = {"x-session-id": str(uuid.uuid4())}
            await connection.ask(post(f"{base}/create", b'{"task_spec":{"target":1}}', session), b'"sid"')
            call = json.dumps({"name": "add", "input": {"by": 1}}).encode()
            steps.append(post(f"{base}/tools/call", call, session))
        sides[OPENREWARD] = posting(servers[OPENREWARD], connections, steps, b'"reward":1.0')
        row = await compare("POST a step, in a session", clients(load), sides, effort)
        return row


async def _connections(stack: AsyncExitStack, server: Server, load: int) -> list[HTTPConnection]:
    connections = [await open_http(server.base) for _ in range(load)]
    await stack.enter_async_context(closing(connections))
    return connections


def posting(
    server: Server, connections: Sequence[HTTPConnection], requests: Sequence[bytes], mark: bytes
) -> Side:
    """Clients that post the same, each its own, again and again."""
    pairs = zip(connections, requests, strict=True)
    return Side(server, [partial(_post, connection, request, mark) for connection, request in pairs])


async def _post(
    connection: HTTPConnection, request: bytes, mark: bytes, until: float, latencies: list[float]
) -> None:
    await connection.repeat(request, mark, until, latencies)


def connecting(server: Server, url: str, load: int, mark: bytes) -> Side:
    """Clients that open a socket, reset, and close it."""

    async def connect(until: float, latencies: list[float]) -> None:
        while True:
            began = time.perf_counter()
            socket = await open_websocket(url)
            await socket.ask(RESET, mark)
            ended = time.perf_counter()
            socket.close()
            latencies.append(ended - began)
            if ended > until:
                return

    works: list[Work] = [connect] * load
    return Side(server, works)
