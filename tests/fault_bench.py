"""The bench of faults: a server, a witness session beside the fault, and a check of what is left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fastmcp
import httpx
from fault_worlds import Counted
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mcpenv.execution.concurrency.threads import THREADS
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

T = TypeVar("T")

ERAS = ("legacy", "2026-07-28")
PATIENCE_S = 30.0
"""Longest wait for anything, in seconds; nothing is expected to take it."""

ADD = {"type": "call_tool", "tool_name": "add", "arguments": {}}


class Control:
    """The control socket, frame by frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, data: Any = None, **more: Any) -> None:
        """Send a frame. If the server has closed, `hear` gives what it said before, and then raises."""
        with contextlib.suppress(ConnectionClosed):
            await self.socket.send(json.dumps({"type": kind, "data": data or {}, **more}))

    async def hear(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE_S))
        return reply

    async def ask(self, kind: str, data: Any = None, **more: Any) -> dict[str, Any]:
        await self.send(kind, data, **more)
        return await self.hear()

    async def begin(self, tool: str, arguments: Any = None, **more: Any) -> None:
        await self.send("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments or {}}, **more)

    async def call(self, tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        await self.begin(tool, arguments, **more)
        return await self.hear()

    def cut(self) -> None:
        """Lose the connection without a word."""
        self.socket.transport.abort()


@asynccontextmanager
async def control(url: str, query: str = "", **options: Any) -> AsyncIterator[Control]:
    address = url.replace("http", "ws", 1) + "/ws" + query
    async with connect(address, max_size=None, compression=None, open_timeout=PATIENCE_S, **options) as socket:
        yield Control(socket)


class Wire:
    """The TCP connection on which bytes are written by hand. It answers nothing by itself, not even pings."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self, value: Any, upto: int | None = None) -> None:
        """Send a WebSocket text frame, or only its first ``upto`` bytes."""
        payload, mask = json.dumps(value).encode(), b"\x01\x02\x03\x04"
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        length = len(payload)
        head = struct.pack("!BB", 0x81, 0x80 | length) if length < 126 else struct.pack("!BBH", 0x81, 0xFE, length)
        self.writer.write((head + mask + masked)[:upto])
        await self.writer.drain()

    async def post(self, path: str, value: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {text}" for name, text in {"Content-Type": "application/json", **(headers or {})}.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self.writer.drain()

    def cut(self) -> None:
        """Lose the connection without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    """Open a bare connection."""
    host = urlsplit(url)
    # A small limit: what is not read stays in the kernel, so that the server's side fills up.
    reader, writer = await asyncio.open_connection(host.hostname, host.port, limit=1024)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def wire_socket(url: str) -> AsyncIterator[Wire]:
    """Open a bare connection that has shaken hands for ``/ws``."""
    async with wire(url) as bare:
        key = base64.b64encode(os.urandom(16)).decode()
        bare.writer.write(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(bare.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 101")
        yield bare


def agent(url: str, era: str = "2026-07-28", token: str | None = None) -> fastmcp.Client[Any]:
    """Return a stock MCP client."""
    return fastmcp.Client(url, mode=era, auth=token)


def modern(method: str, params: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a JSON-RPC request of the 2026-07-28 era, as its smallest client sends it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "smallest", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {**(params or {}), "_meta": meta}
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
    }
    if "name" in params:
        headers["Mcp-Name"] = str(params["name"])
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that other threads bring about."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


class Bench:
    """The running server, a witness with a session of its own, and the counts at rest.

    Attributes:
        url: of the server.
        world: the environment's class.
        http: a client of the server.
    """

    def __init__(self, url: str, world: type[Counted], http: httpx.AsyncClient, witness: Control) -> None:
        self.url, self.world, self.http = url, world, http
        self.census, self.gate = world.census, world.gate
        self._witness = witness
        self._witnessed = 0
        self._at_rest: dict[str, int] = {}

    async def capacity(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.http.get("/capacity")).json()
        return answer

    async def inside(self, many: int = 1) -> None:
        """Wait until a call is at the gate."""
        await until(lambda: self.gate.inside >= many, f"{many} inside the gate")

    async def unaffected(self) -> None:
        """The witness steps, and nothing of its own is missing."""
        reply = await self._witness.call("add")
        self._witnessed += 1
        assert reply["data"]["observation"]["result"]["data"] == self._witnessed, reply
        assert reply["data"]["info"]["return"] == float(self._witnessed)

    async def rest(self) -> None:
        """Take note of what there is before anything goes wrong."""
        async with agent(
            f"{self.url}/mcp", "legacy"
        ) as client:  # the first stream starts a task that watches for the end
            await client.list_tools()
        await self._witness.ask("reset")
        await self.unaffected()
        await self.capacity()
        self._at_rest = self._used()

    async def nothing_left(self, quarantined: int = 0) -> None:
        """Check that the fault left nothing: no slots, instances, threads, tasks or sockets.

        Args:
            quarantined: instances that still have a thread in them.
        """
        expected = {"active_sessions": 1, "waiting": 0, "quarantined": quarantined}
        seen: dict[str, Any] = {}
        over = {
            "tasks": quarantined,
            "sockets": 0,
            "threads": quarantined,
            "instances": quarantined,
            "alive": quarantined,
        }
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    seen = {name: (await self.capacity())[name] for name in expected}
                    used = self._used()
                    if seen == expected and all(used[n] <= self._at_rest[n] + over[n] for n in used):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            tasks = [task.get_coro() for task in self._tasks()]
            raise AssertionError(
                f"left over: {seen} of {expected}; {used} of {self._at_rest} at rest\n" + "\n".join(map(str, tasks))
            ) from None

    def _used(self) -> dict[str, int]:
        gc.collect()
        return {
            "tasks": len(self._tasks()),
            "sockets": open_sockets(),
            "threads": busy_threads(),
            "instances": self.census.in_use,
            "alive": self.census.alive,
        }

    def _tasks(self) -> set[asyncio.Task[Any]]:
        assert self.census.loop is not None
        return {task for task in asyncio.all_tasks(self.census.loop) if not task.done()}


def open_sockets() -> int:
    """Sockets of this process: the server's and its clients'."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:  # closed meanwhile
            continue
    return count


def busy_threads() -> int:
    """Threads but for those that wait in the pool for work."""
    with THREADS._mutex:
        idle = {thread.thread for thread in THREADS._idle}
    return len([thread for thread in threading.enumerate() if thread not in idle])


def beside_a_witness(
    world: type[Counted], fault: Callable[[Bench], Awaitable[None]], config: ServerConfig | None = None
) -> None:
    """Let something go wrong on a server, and hold that nothing is left of it and that a witness noticed nothing."""

    async def main(url: str) -> None:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as http, control(url) as witness:
            bench = Bench(url, world, http, witness)
            await bench.rest()
            await fault(bench)
            await bench.unaffected()
            await bench.nothing_left()
            await bench.unaffected()

    before = busy_threads()
    with serving(world, config) as url:
        run(main(url))
    census = world.census
    assert census.opened - census.failed == census.closed, "not every instance was closed"
    assert census.closed_twice == 0
    assert busy_threads() <= before


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, within bounds."""
    return asyncio.run(asyncio.wait_for(main, 3 * PATIENCE_S))
