"""Answers of the 2026-07-28 era are plain JSON until there is something to say before them; then event streams."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastmcp import Context
from fault_bench import modern
from mcp.server import _streamable_http_modern
from mcp.server.session import ServerSession
from test_connections import raw

from mcpenv import MCPEnvironment
from mcpenv.server.mcp import endpoint
from mcpenv.server.mcp.endpoint import LateStream
from mcpenv.server.serve import serving

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


async def lines_of(url: str, name: str, accept: str = "") -> AsyncIterator[str]:
    """The content type of a call's answer, then its lines as they come."""
    async with raw(url) as client:
        body, headers = modern("tools/call", {"name": name, "arguments": {}})
        body["params"].setdefault("_meta", {}).update(META)
        if accept:
            headers = {**headers, "Accept": accept}
        async with client.http.stream("POST", "/mcp", json=body, headers=headers) as response:
            yield f"{response.status_code} {response.headers['content-type']}"
            async for line in response.aiter_lines():
                yield line


async def answer(url: str, name: str, accept: str = "") -> tuple[str, list[str]]:
    lines = [line async for line in lines_of(url, name, accept)]
    return lines[0], lines[1:]


def messages(lines: list[str]) -> list[Any]:
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def test_a_call_that_says_nothing_is_answered_with_json_and_one_that_does_with_a_stream() -> None:
    with serving(Talker) as url:
        kind, lines = asyncio.run(answer(url, "quiet"))
        assert kind == "200 application/json"
        assert json.loads("".join(lines))["result"]["structuredContent"] == {"result": "done"}
        kind, lines = asyncio.run(answer(url, "talk"))
        assert kind.startswith("200 text/event-stream")
        progress, log, result = messages(lines)
        assert (progress["method"], progress["params"]["progress"]) == ("notifications/progress", 1)
        assert (log["method"], log["params"]["data"]["msg"]) == ("notifications/message", "nearly")
        assert result["result"]["structuredContent"] == {"result": "done"}


def test_a_client_that_takes_no_streams_gets_json_whatever_the_call_says() -> None:
    with serving(Talker) as url:
        kind, lines = asyncio.run(answer(url, "talk", accept="application/json"))
        assert kind == "200 application/json"
        assert json.loads("".join(lines))["result"]["structuredContent"] == {"result": "done"}


def test_a_call_that_takes_long_gets_its_stream_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.server.mcp.endpoint.PING_S", 0.0)
    Talker.gate.clear()

    async def main(url: str) -> list[Any]:
        lines = []
        async for line in lines_of(url, "hold"):
            if line.startswith(": ping"):
                Talker.gate.set()
            lines.append(line)
        assert lines[0].startswith("200 text/event-stream")
        return messages(lines)

    with serving(Talker) as url:
        (result,) = asyncio.run(asyncio.wait_for(main(url), 30))
        assert result["result"]["structuredContent"] == {"result": "held"}


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
    """`late_stream` builds on these; when they move, this fails first."""
    assert "_request_outbound" in ServerSession.__init__.__code__.co_names
    assert "sink" in _streamable_http_modern._SingleExchangeDispatchContext.__dataclass_fields__
    assert endpoint.PING_S == _streamable_http_modern._SSE_PING_INTERVAL
