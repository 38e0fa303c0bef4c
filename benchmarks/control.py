"""The control plane besides ``/ws`` steps: sockets opened and reset, and steps over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial

from .effort import Effort
from .load import HTTPConnection, Work, closing, drive, open_http, open_websocket, post
from .rows import OURS, Row, Side, compare
from .serving import SIDES, Server, floor, mcpenv, together
from .steps import FLOOR, OPENENV, RESET, ROOM, clients, openenv

ACTION = {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}


def run(effort: Effort) -> list[Row]:
    """Measure under every load: connect and reset; a step in a session over HTTP; one in an episode of its own."""
    with ExitStack() as stack:
        servers = {
            OURS: mcpenv(SIDES / "mcpenv_tools.py", "--max-sessions", str(ROOM)),
            FLOOR: floor(),
            OPENENV: openenv(),
        }
        return drive(_rows(together(stack, servers), effort))


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
    """Measure steps in a session of each client's. OpenEnv has none over HTTP."""
    async with AsyncExitStack() as stack:
        ours, floor_side = [await _connections(stack, servers[name], load) for name in (OURS, FLOOR)]
        base = servers[OURS].base
        opened = [
            json.loads(await connection.ask(post(f"{base}/reset", b"{}"), b'"session_id"'))["session_id"]
            for connection in ours
        ]
        steps = [
            post(f"{base}/step", json.dumps({"action": ACTION, "session_id": session_id}).encode())
            for session_id in opened
        ]
        size = len(await ours[0].ask(steps[0], b'"reward":1.0'))
        floor_step = post(f"{servers[FLOOR].base}/step?bytes={size}", b"{}")
        sides = {
            OURS: posting(servers[OURS], ours, steps, b'"reward":1.0'),
            FLOOR: posting(servers[FLOOR], floor_side, [floor_step] * load, b""),
        }
        row = await compare("POST a step, in a session", clients(load), sides, effort)
        for connection, session_id in zip(ours, opened, strict=True):
            await connection.ask(post(f"{base}/sessions/{session_id}", b"", method="DELETE"))
        return row


async def _connections(stack: AsyncExitStack, server: Server, load: int) -> list[HTTPConnection]:
    connections = [await open_http(server.base) for _ in range(load)]
    await stack.enter_async_context(closing(connections))
    return connections


def posting(server: Server, connections: Sequence[HTTPConnection], requests: Sequence[bytes], mark: bytes) -> Side:
    """Return clients that post the same request repeatedly, one request each."""
    pairs = zip(connections, requests, strict=True)
    return Side(server, [partial(_post, connection, request, mark) for connection, request in pairs])


async def _post(connection: HTTPConnection, request: bytes, mark: bytes, until: float, latencies: list[float]) -> None:
    await connection.repeat(request, mark, until, latencies)


def connecting(server: Server, url: str, load: int, mark: bytes) -> Side:
    """Return clients that open a socket, reset, and close it."""

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
