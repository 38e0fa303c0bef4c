"""Answers are plain JSON until there is something to say before them; then they are event streams, in both eras."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastmcp import Context
from fault_bench import modern
from mcp.server import _streamable_http_modern
from mcp.server.session import ServerSession
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from test_transports import raw

from mcpenv import MCPEnvironment, late_stream, late_transport
from mcpenv.late_stream import LateStream
from mcpenv.serve import serving

ERAS = ["2025-11-25", "2026-07-28"]
META = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}


class Talker(MCPEnvironment):
    """Says something on the way, or nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate, inside = threading.Event(), threading.Event()

    def __init__(self) -> None:
        @self.tool
        async def quiet() -> str:
            """Nothing."""
            return "done"

        @self.tool
        async def talk(ctx: Context) -> str:
            """Two words."""
            await ctx.report_progress(1, 2, "half")
            await ctx.info("nearly")
            return "done"

        @self.tool
        def hold() -> str:
            """Wait for the gate."""
            self.gate.wait(30)
            return "held"

        @self.tool
        async def wait() -> None:
            """Wait for ever."""
            self.inside.set()
            await asyncio.Event().wait()

        @self.tool
        async def hang_up(ctx: Context) -> str:
            """Have the client come back for the answer."""
            await ctx.close_sse_stream()
            return "kept"


async def lines_of(url: str, era: str, name: str, accept: str = "") -> AsyncIterator[str]:
    """The content type of a call's answer, then its lines as they come."""
    async with raw(url) as client:
        body, headers = modern("tools/call", {"name": name, "arguments": {}})
        body["params"].setdefault("_meta", {}).update(META)
        if era == "2025-11-25":
            connection = await client.open("/mcp")
            headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": connection}
            headers["MCP-Protocol-Version"] = era
            body["params"]["_meta"] = META
        if accept:
            headers = {**headers, "Accept": accept}
        async with client.http.stream("POST", "/mcp", json=body, headers=headers) as response:
            yield f"{response.status_code} {response.headers['content-type']}"
            async for line in response.aiter_lines():
                yield line


async def answer(url: str, era: str, name: str, accept: str = "") -> tuple[str, list[str]]:
    lines = [line async for line in lines_of(url, era, name, accept)]
    return lines[0], lines[1:]


def messages(lines: list[str]) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is slow, however busy the machine."""
    monkeypatch.setattr(late_transport, "QUICK_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_says_nothing_is_answered_with_json_and_one_that_does_with_a_stream(era: str) -> None:
    with serving(Talker) as url:
        kind, lines = asyncio.run(answer(url, era, "quiet"))
        assert kind == "200 application/json"
        assert json.loads("".join(lines))["result"]["structuredContent"] == {"result": "done"}
        kind, lines = asyncio.run(answer(url, era, "talk"))
        assert kind.startswith("200 text/event-stream")
        progress, log, result = messages(lines)
        assert (progress["method"], progress["params"]["progress"]) == ("notifications/progress", 1)
        assert (log["method"], log["params"]["data"]["msg"]) == ("notifications/message", "nearly")
        assert result["result"]["structuredContent"] == {"result": "done"}


def test_a_client_that_takes_no_streams_gets_json_whatever_the_call_says() -> None:
    with serving(Talker) as url:
        kind, lines = asyncio.run(answer(url, "2026-07-28", "talk", accept="application/json"))
        assert kind == "200 application/json"
        assert json.loads("".join(lines))["result"]["structuredContent"] == {"result": "done"}


@pytest.mark.parametrize("era", ERAS)
def test_a_call_that_takes_long_gets_its_stream_before_its_answer(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_transport, "QUICK_S", 0.0)
    monkeypatch.setattr("mcpenv.mcp_endpoint.PING_S", 0.0)
    Talker.gate.clear()

    async def main(url: str) -> list[Any]:
        lines = []
        async for line in lines_of(url, era, "hold"):
            # An event to resume from, in the handshake era; a comment in the other one.
            if line.startswith((": ping", "id: ")):
                Talker.gate.set()
            lines.append(line)
        assert lines[0].startswith("200 text/event-stream")
        return messages(lines)

    with serving(Talker) as url:
        (result,) = asyncio.run(asyncio.wait_for(main(url), 30))
        assert result["result"]["structuredContent"] == {"result": "held"}


@pytest.mark.usefixtures("patient")
def test_a_tool_that_ends_its_stream_at_once_is_answered_where_the_client_comes_back() -> None:
    async def main(url: str) -> None:
        async with raw(url) as client:
            connection = await client.open("/mcp")
            headers = {
                "Accept": "application/json, text/event-stream",
                "Mcp-Session-Id": connection,
                "MCP-Protocol-Version": "2025-11-25",
            }
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "hang_up", "arguments": {}}}
            ended = await client.http.post("/mcp", json=body, headers=headers)
            assert ended.headers["content-type"].startswith("text/event-stream")
            assert messages(ended.text.splitlines()) == []
            (last,) = [line.removeprefix("id: ") for line in ended.text.splitlines() if line.startswith("id: ")]
            resumed = {**headers, "Accept": "text/event-stream", "Last-Event-ID": last}
            async with client.http.stream("GET", "/mcp", headers=resumed) as response:
                async for line in response.aiter_lines():
                    if said := messages([line]):
                        assert said[0]["result"]["structuredContent"] == {"result": "kept"}
                        return

    with serving(Talker) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


@pytest.mark.usefixtures("patient")
def test_a_call_that_is_cancelled_ends_as_a_stream() -> None:
    """The stock client, on its way out, fails with such an answer if it comes as JSON."""

    async def main(url: str) -> None:
        Talker.gate.clear()
        Talker.inside.clear()
        async with raw(url) as client:
            connection = await client.open("/mcp")
            headers = {"Accept": "application/json, text/event-stream", "Mcp-Session-Id": connection}
            params = {"name": "wait", "arguments": {}}
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
            calling = asyncio.create_task(client.http.post("/mcp", json=body, headers=headers))
            await asyncio.to_thread(Talker.inside.wait, 30)
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            await client.http.post("/mcp", json=cancelled, headers=headers)
            ended = await calling
        assert ended.headers["content-type"].startswith("text/event-stream")
        (said,) = messages(ended.text.splitlines())
        assert (said["id"], said["error"]["code"]) == (7, -32800)

    with serving(Talker) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_what_is_said_after_the_answer_is_heard_by_nobody() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        quiet = LateStream(send)
        await quiet({"type": "http.response.start", "status": 404, "headers": []})
        await quiet.send(b"late")
        await quiet({"type": "http.response.body", "body": b"{}"})
        assert [message.get("status") or message["body"] for message in sent] == [404, b"{}"]
        sent.clear()
        talks = LateStream(send)
        await talks.send(b"early")
        await talks({"type": "http.response.start", "status": 404, "headers": []})
        await talks({"type": "http.response.body", "body": b"{}"})
        await talks.send(b"late")
        assert [message.get("status") or message["body"] for message in sent] == [
            200,
            b"early",
            b"event: message\r\ndata: {}\r\n\r\n",
        ]

    asyncio.run(main())


def test_the_private_names_of_mcp_are_where_they_were() -> None:
    """`late_stream` and `late_transport` build on these; when they move, this fails first."""
    assert "_request_outbound" in ServerSession.__init__.__code__.co_names
    assert "sink" in _streamable_http_modern._SingleExchangeDispatchContext.__dataclass_fields__
    assert list(inspect.signature(StreamableHTTPSessionManager._admit_session).parameters) == ["self", "requestor"]
    theirs = inspect.signature(StreamableHTTPServerTransport._handle_post_request).parameters
    assert list(inspect.signature(late_transport.LateTransport._handle_post_request).parameters) == list(theirs)
    used = late_transport.LateTransport._handle_post_request.__code__.co_names
    for name in ("_mint_priming_event", "_create_session_message", "_clean_up_memory_streams", "_create_json_response"):
        assert name in used
        assert callable(getattr(StreamableHTTPServerTransport, name))
    for name in ("_request_streams", "_sse_stream_writers"):
        assert name in StreamableHTTPServerTransport.__init__.__code__.co_names
    assert late_stream.PING_S == _streamable_http_modern._SSE_PING_INTERVAL


@pytest.mark.usefixtures("patient")
def test_every_handshake_connection_answers_late() -> None:
    with serving(Talker) as url:
        headers = {"Accept": "application/json, text/event-stream"}
        opening = {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "a", "version": "1"},
            },
        }
        opened = httpx.post(f"{url}/mcp", json=opening, headers=headers)
        headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        response = httpx.post(f"{url}/mcp", json=listed, headers=headers)
        assert response.headers["content-type"] == "application/json"
        assert response.headers["mcp-session-id"] == headers["Mcp-Session-Id"]
        assert len(response.json()["result"]["tools"]) == 5
