"""Clients of the handshake era get progress, logs and questions, come back for answers, and leave at any time."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import weakref
from typing import Any

import fastmcp
import pytest
from fastmcp.client.elicitation import ElicitResult
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
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


def test_what_says_something_is_answered_with_a_stream_that_begins_with_it() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            response = await client.http.post("/mcp", json=called(1, "talk"), headers=await opened(client))
            assert "content-length" not in response.headers
            progress, log, result = events(response.text)
            assert progress["params"]["progress"] == 1
            assert log["params"]["data"]["msg"] == "nearly"
            assert result["result"]["structuredContent"] == {"result": "done"}
            ids = re.findall("(?m)^id: (.*)$", response.text)
            assert len(set(ids)) == len(ids) == 4  # the first is of no message, for clients that come back
            assert "retry: 500" in response.text

    with serving(Talker) as url:
        run(main(url))


def test_what_takes_long_has_a_stream_before_its_answer() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            async with client.http.stream("POST", "/mcp", json=called(1, "hold"), headers=headers) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                Talker.gate.set()
                (result,) = events((await response.aread()).decode())
            assert result["result"]["structuredContent"] == {"result": "held"}

    with serving(Talker) as url:
        run(main(url))


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


def test_what_a_call_says_before_it_closes_its_stream_is_not_lost() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            closed = await client.http.post("/mcp", json=called(1, "talk_and_hang_up"), headers=headers)
            said = events(closed.text)
            Talker.gate.set()
            again = {**headers, "Last-Event-ID": re.findall(r"(?m)^id: (\d+)", closed.text)[-1]}
            async with client.http.stream("GET", "/mcp", headers=again) as response:
                async for line in response.aiter_lines():
                    said += events(line)
                    if "result" in line:
                        break
            progress, result = said
            assert progress["params"]["message"] == "half"
            assert result["result"]["structuredContent"] == {"result": "after all"}

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


def test_a_call_that_its_client_cancels_is_answered() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)
            waiting = asyncio.create_task(client.http.post("/mcp", json=called(1, "hold"), headers=headers))
            await entered(Talker.inside)
            notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
            assert (await client.http.post("/mcp", json=notice, headers=headers)).status_code == 202
            Talker.gate.set()
            (answer,) = events((await waiting).text)
            assert (answer["id"], answer["error"]["message"]) == (1, "Request cancelled")
            response = await client.http.post("/mcp", json=called(2, "echo", number=1), headers=headers)
            (answer,) = events(response.text)
            assert answer["result"]["structuredContent"] == {"result": 1}

    with serving(Talker) as url:
        run(main(url))


def test_a_call_may_ask_its_client() -> None:
    async def who(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult[Any]:
        return ElicitResult(action="accept", content={"value": f"{message} me"})

    async def main(url: str) -> None:
        async with fastmcp.Client(f"{url}/mcp", mode="legacy", elicitation_handler=who) as client:
            assert (await client.call_tool("ask")).data == "who? me"

    with serving(Talker) as url:
        run(main(url))


@pytest.mark.parametrize("kind", ["fastmcp", "mcp"])
def test_who_leaves_while_calls_are_under_way_is_told_nothing_else(kind: str) -> None:
    class Leaving(Exception):
        """Why."""

    async def session(url: str) -> None:
        async with streamable_http_client(f"{url}/mcp") as (read, write, *_), ClientSession(read, write) as client:
            await client.initialize()
            calls = [asyncio.ensure_future(client.call_tool("echo", {"number": number})) for number in range(20)]
            await calls[0]
            raise Leaving

    async def stock(url: str) -> None:
        async with fastmcp.Client(f"{url}/mcp", mode="legacy") as client:
            calls = [asyncio.ensure_future(client.call_tool("echo", {"number": number})) for number in range(20)]
            await calls[0]
            raise Leaving

    async def main(url: str) -> None:
        for _ in range(10):
            try:
                await (stock if kind == "fastmcp" else session)(url)
            except Leaving:
                pass
            except BaseExceptionGroup as group:
                assert group.split(Leaving)[1] is None

    with serving(Talker) as url:
        run(main(url))


def test_calls_at_once_on_one_connection_have_their_own_answers() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            headers = await opened(client)

            async def one(number: int) -> Any:
                response = await client.http.post("/mcp", json=called(number, "echo", number=number), headers=headers)
                (message,) = events(response.text)
                return message["id"], message["result"]["structuredContent"]["result"]

            assert await asyncio.gather(*map(one, range(60))) == [(number, number) for number in range(60)]

    with serving(Talker) as url:
        run(main(url))


@pytest.mark.parametrize(
    ("content", "headers", "status", "says"),
    [
        (b"{", {}, 400, "Parse error"),
        (b"[]", {}, 400, "Validation error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Accept": "application/json"}, 406, "Not Acceptable"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Content-Type": "text/plain"}, 400, "Content-Type"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Mcp-Session-Id": "of-nobody"}, 404, "Session not found"),
    ],
)
def test_what_is_no_request_in_order_is_refused_in_mcps_own_words(
    content: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            sent = {**await opened(client), "Content-Type": "application/json", **headers}
            response = await client.http.post("/mcp", content=content, headers=sent)
            assert response.status_code == status
            assert says in response.text

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
