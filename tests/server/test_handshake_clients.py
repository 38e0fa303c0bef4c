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
    gate, inside, told = threading.Event(), threading.Event(), threading.Event()

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
        async def talk_much(ctx: Context, away: float) -> str:
            """Say something, and much more while nobody listens."""
            await ctx.report_progress(1, 9, "half")
            self.inside.set()
            await asyncio.to_thread(self.gate.wait, LIMIT_S)
            for number in range(3):
                await ctx.report_progress(2 + number, 9, "x" * 200_000)
            self.told.set()
            await asyncio.sleep(away)
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


async def broken_off(client: Raw, tool: str, headers: dict[str, str], **arguments: Any) -> str:
    """Call a tool, and leave at the first event. Return the event's id."""
    async with client.http.stream("POST", "/mcp", json=called(1, tool, **arguments), headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                await entered(Talker.inside)
                return line.removeprefix("id: ")
    raise AssertionError("no event")


async def resumed(client: Raw, last: str, headers: dict[str, str]) -> Any:
    """Come back for the answer, again if the server has not noticed yet that its client was gone."""
    while True:
        async with client.http.stream("GET", "/mcp", headers={**headers, "Last-Event-ID": last}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    (message,) = events(line)
                    if "result" in message:
                        return message["result"]["structuredContent"]


def test_who_breaks_off_comes_back_for_the_answer_whenever_that_is_given() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            for number in range(60):
                Talker.gate.clear()
                Talker.inside.clear()
                headers = await opened(client)
                last = await broken_off(client, "hold", headers)
                # The answer comes before, while, or after the server turns to the client that returns.
                asyncio.get_running_loop().call_later(number * 1e-4, Talker.gate.set)
                assert await resumed(client, last, headers) == {"result": "held"}

    with serving(Talker) as url:
        run(main(url))


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
def test_who_comes_back_while_more_is_said_gets_the_answer_too(version: str) -> None:
    """Clients of the earlier version have no first events."""

    async def main(url: str) -> None:
        async with raw(url) as client:
            for number in range(20):
                for event in (Talker.gate, Talker.inside, Talker.told):
                    event.clear()
                headers = {**await opened(client), "MCP-Protocol-Version": version}
                last = await broken_off(client, "talk_much", headers, away=number * 1e-3)
                Talker.gate.set()
                await entered(Talker.told)
                assert await resumed(client, last, headers) == {"result": "after all"}

    with serving(Talker) as url:
        run(main(url))


async def the_rest(client: Raw, last: str, headers: dict[str, str]) -> list[Any]:
    """Come back, and read the messages of the stream until the server ends it."""
    response = await client.http.get("/mcp", headers={**headers, "Last-Event-ID": last})
    assert response.status_code == 200
    return events(response.text)


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
def test_a_resumed_stream_ends_with_the_answer_whenever_that_is_given(version: str) -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            for number in range(20):
                Talker.gate.clear()
                Talker.told.clear()
                Talker.inside.clear()
                headers = {**await opened(client), "MCP-Protocol-Version": version}
                last = await broken_off(client, "talk_much", headers, away=0.0)
                asyncio.get_running_loop().call_later(number * 5e-4, Talker.gate.set)
                messages = await the_rest(client, last, headers)
                while not any("result" in message for message in messages):
                    # The server had not noticed yet that the client was gone, and its first stream had the answer.
                    messages = await the_rest(client, last, headers)
                assert [message for message in messages if "result" in message] == messages[-1:]

    with serving(Talker) as url:
        run(main(url))


def test_a_stream_that_is_resumed_after_its_answer_ends_at_once() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            text = (await client.http.post("/mcp", json=called(1, "talk"), headers=headers)).text
            *_, last = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]
            assert "result" in events(text)[-1]
            assert await the_rest(client, last, headers) == []

    with serving(Talker) as url:
        run(main(url))


def test_a_resumed_stream_ends_with_its_connection_whenever_that_ends() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            for number in range(40):
                Talker.gate.clear()
                Talker.inside.clear()
                headers = await opened(client)
                last = await broken_off(client, "hold", headers)
                back = {**headers, "Last-Event-ID": last}
                waiting = asyncio.create_task(client.http.get("/mcp", headers=back))
                await asyncio.sleep(number * 2e-4)  # the connection ends before, while, or after it is resumed
                assert (await client.http.delete("/mcp", headers=headers)).status_code == 200
                response = await waiting
                assert response.status_code == 404 or events(response.text) == []
                Talker.gate.set()

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
