"""Clients of the handshake era get progress, logs and questions, come back for answers, and leave at any time."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from typing import Any

import pytest
from mcp.server.streamable_http import StreamableHTTPServerTransport
from test_connections import HEADERS, Raw, raw, run

from mcpenv import Context, MCPEnvironment
from mcpenv.server.serve import serving

LIMIT_S = 30
RESUMABLE = {**HEADERS, "MCP-Protocol-Version": "2025-11-25"}


class Talker(MCPEnvironment):
    """Says something on the way, or nothing, at once or when the gate is open."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate, inside = threading.Event(), threading.Event()

    def __init__(self) -> None:
        @self.tool(concurrent=True)
        async def echo(number: int) -> int:
            """Give it back."""
            await asyncio.sleep(0)
            return number

        @self.tool
        async def talk(ctx: Context) -> str:
            """Two words."""
            await ctx.report_progress(1, 2, "half")
            await ctx.info("nearly")
            return "done"

        @self.tool(concurrent=True)
        def hold() -> str:
            """Wait for the gate."""
            self.inside.set()
            self.gate.wait(LIMIT_S)
            return "held"

        @self.tool
        async def talk_and_hang_up(ctx: Context) -> str:
            """Say something, close the stream, return when the gate is open."""
            await ctx.report_progress(1, 2, "half")
            await ctx.close_sse_stream()
            self.inside.set()
            await asyncio.to_thread(self.gate.wait, LIMIT_S)
            return "after all"

        @self.tool
        async def ask(ctx: Context) -> str:
            """Ask the user."""
            answer = await ctx.elicit("who?", str)
            return getattr(answer, "data", "nobody")


@pytest.fixture(autouse=True)
def closed_gate() -> Any:
    Talker.gate.clear()
    Talker.inside.clear()
    yield
    Talker.gate.set()


def called(number: int, name: str, /, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def events(text: str) -> list[Any]:
    """The messages in a stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


async def opened(client: Raw) -> dict[str, str]:
    return {**RESUMABLE, "Mcp-Session-Id": await client.open("/mcp")}


async def entered(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT_S)


def test_who_breaks_off_comes_back_for_the_answer() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            async with client.http.stream("POST", "/mcp", json=called(1, "hold"), headers=headers) as response:
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        last = line.removeprefix("id: ")
                        break
            Talker.gate.set()
            again = {**headers, "Last-Event-ID": last}
            async with client.http.stream("GET", "/mcp", headers=again) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        (result,) = events(line)
                        assert result["result"]["structuredContent"] == {"result": "held"}
                        return
            raise AssertionError("it was not answered")

    with serving(Talker) as url:
        run(main(url))


def test_a_call_whose_connection_ends_has_no_answer_and_its_stream_ends() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            waiting = asyncio.create_task(client.http.post("/mcp", json=called(1, "hold"), headers=headers))
            await entered(Talker.inside)
            assert (await client.http.delete("/mcp", headers=headers)).status_code == 200
            assert events((await waiting).text) == []
            assert (await client.http.post("/mcp", json=called(2, "hold"), headers=headers)).status_code == 404

    with serving(Talker) as url:
        run(main(url))


def test_a_connection_that_has_ended_is_kept_by_nobody() -> None:
    kept: list[weakref.ref[StreamableHTTPServerTransport]] = []
    begin = StreamableHTTPServerTransport.__init__

    def noted(self: StreamableHTTPServerTransport, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        kept.append(weakref.ref(self))

    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            await client.http.post("/mcp", json=called(1, "talk"), headers=headers)
            assert (await client.http.delete("/mcp", headers=headers)).status_code == 200
            while kept[0]() is not None:
                await asyncio.sleep(0.01)
                gc.collect()

    with pytest.MonkeyPatch.context() as patch, serving(Talker) as url:
        patch.setattr(StreamableHTTPServerTransport, "__init__", noted)
        run(main(url))
