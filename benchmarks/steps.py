"""The steps over ``/ws``: scored tool calls of each kind, beside a Starlette without work and beside OpenEnv."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .effort import Effort
from .load import WebSocketConnection, closing, drive, frame, open_websocket
from .peers import python_of
from .rows import OURS, Row, Side, compare
from .serving import SIDES, Server, floor, mcpenv, serve, together

OPENENV, FLOOR, PLAIN = "OpenEnv 0.10", "floor", "mcpenv without the two"
TOKEN = "benchmark-token-of-the-control-plane"

RESET = frame(b'{"type":"reset","data":{}}')
RECORDED = "recorded"
ROOM = 1024
"""Sessions for which servers are given room."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a tool: the arguments of calls, and a text that every right answer contains on every side."""

    name: str
    tool: str
    arguments: dict[str, Any]
    mark: bytes = b'"reward":1.0'

    @property
    def step(self) -> bytes:
        action = {"type": "call_tool", "tool_name": self.tool, "arguments": self.arguments}
        return json.dumps({"type": "step", "data": action}).encode()


ASYNC = Kind("async tool", "add", {"by": 1})
KINDS = (
    ASYNC,
    Kind("sync tool, in a thread", "add_sync", {"by": 1}),
    Kind("async tool, pydantic model", "order", {"order": {"item": "tea", "quantity": 2, "notes": ["green"]}}),
    Kind("async tool, 100 kB result", "read", {}, b"0123456789" * 20),
    Kind("async tool, image of 16 kB", "look", {}, b"iVBORw0KGgo"),
)


def run(effort: Effort) -> list[Row]:
    """Measure every kind under every load, then the first kind on a server that records and requires a token."""
    with ExitStack() as stack:
        record = stack.enter_context(tempfile.TemporaryDirectory())
        tools, room = SIDES / "mcpenv_tools.py", ("--max-sessions", str(ROOM))
        servers = {
            OURS: mcpenv(tools, *room),
            FLOOR: floor(),
            OPENENV: openenv(),
            RECORDED: mcpenv(tools, *room, "--record", record, "--control-token", TOKEN),
        }
        started = together(stack, servers)
        recorded = started.pop(RECORDED)
        rows = drive(rows_of(started, effort))
        of_both = {OURS: recorded, PLAIN: started[OURS], FLOOR: started[FLOOR], OPENENV: started[OPENENV]}
        kind = replace(ASYNC, name="async tool, recorded, with a token")
        return [*rows, *drive(rows_of(of_both, effort, (kind,), headers=f"Authorization: Bearer {TOKEN}\r\n"))]


def openenv(*options: str) -> AbstractContextManager[Server]:
    """Start OpenEnv's server of the same tools."""
    return serve([python_of("openenv-0.10.0"), SIDES / "openenv_tools.py", *options])


async def rows_of(
    servers: Mapping[str, Server], effort: Effort, kinds: Sequence[Kind] = KINDS, headers: str = ""
) -> list[Row]:
    """Measure every kind under every load, with these sides.

    Args:
        headers: the credentials of clients, each line with its end.
    """
    rows = []
    for kind in kinds:
        size = len(await _answer_of(servers[OURS], kind, headers))
        urls = {name: server.ws for name, server in servers.items()} | {FLOOR: f"{servers[FLOOR].ws}?bytes={size}"}
        for load in effort.loads:
            async with AsyncExitStack() as stack:
                sides = {}
                for name, server in servers.items():
                    sockets = [await open_websocket(urls[name], headers) for _ in range(load)]
                    await stack.enter_async_context(closing(sockets))
                    sides[name] = stepping(server, sockets, kind, mark=b"" if name == FLOOR else kind.mark)
                rows.append(await compare(f"/ws step, {kind.name}", clients(load), sides, effort))
    return rows


def stepping(server: Server, sockets: Sequence[WebSocketConnection], kind: Kind, mark: bytes) -> Side:
    """Return clients that step, each in an episode that begins anew with each round."""

    async def reset() -> None:
        await asyncio.gather(*(socket.ask(RESET) for socket in sockets))

    step = frame(kind.step)
    works = [partial(_repeat, socket, step, mark) for socket in sockets]
    return Side(server, works, reset)


async def _repeat(socket: WebSocketConnection, step: bytes, mark: bytes, until: float, latencies: list[float]) -> None:
    await socket.repeat(step, mark, until, latencies)


async def _answer_of(server: Server, kind: Kind, headers: str) -> bytes:
    """Return mcpenv's answer to a step of that kind, for the floor to give as many bytes."""
    socket = await open_websocket(server.ws, headers)
    async with closing([socket]):
        await socket.ask(RESET, b'"observation"')
        return await socket.ask(frame(kind.step), kind.mark)


def clients(load: int) -> str:
    """Return a load in words."""
    return "1 client" if load == 1 else f"{load:,} clients"
