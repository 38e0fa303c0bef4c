"""Test the events that are stored for handshake clients whose stream broke off."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import fastmcp
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from mcpenv import Context, MCPEnvironment
from mcpenv.server.mcp.event_store import RESUMED, RecentEvents, Resumption
from mcpenv.server.serve import serving


def reply(text: str) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=1, result={"content": [{"type": "text", "text": text}]})


async def replayed(store: RecentEvents, after: str) -> tuple[str | None, list[tuple[str | None, Any]]]:
    sent: list[tuple[str | None, Any]] = []

    async def send(event: EventMessage) -> None:
        sent.append((event.event_id, event.message))

    return await store.replay_events_after(after, send), sent


def test_what_came_later_in_the_same_stream_is_sent_again() -> None:
    async def main() -> None:
        store = RecentEvents()
        begun = await store.store_event("mine", None)
        await store.store_event("other", reply("theirs"))
        progress = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params={"progress": 1})
        first = await store.store_event("mine", progress)
        second = await store.store_event("mine", reply("mine"))
        assert await replayed(store, begun) == ("mine", [(first, progress), (second, reply("mine"))])
        assert await replayed(store, first) == ("mine", [(second, reply("mine"))])
        assert await replayed(store, second) == ("mine", [])
        assert await replayed(store, "nonsense") == (None, [])

    asyncio.run(main())


def test_the_oldest_go_first_by_size_but_the_last_stays() -> None:
    async def main() -> None:
        store = RecentEvents(max_size=1_000)
        small = await store.store_event("small", reply("x"))
        huge = await store.store_event("huge", reply("x" * 1_000_000))
        assert (await replayed(store, small))[0] is None
        assert (await replayed(store, huge))[0] == "huge"
        await store.store_event("small", reply("x"))
        assert (await replayed(store, huge))[0] is None
        assert len(store) == 1

    asyncio.run(main())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400)), max_size=60), st.integers(1, 20))
def test_no_more_is_kept_than_allowed_and_streams_stay_apart(events: list[tuple[str, int]], most: int) -> None:
    async def main() -> None:
        store = RecentEvents(max_events=most, max_size=2_000)
        stored = []
        for stream, size in events:
            stored.append((stream, await store.store_event(stream, reply("x" * size))))
            assert len(store) <= most
        kept = stored[len(stored) - len(store) :]
        for place, (stream, event) in enumerate(kept):
            found, sent = await replayed(store, event)
            assert found == stream
            assert [each for each, _ in sent] == [later for name, later in kept[place + 1 :] if name == stream]
        for _, event in stored[: len(stored) - len(store)]:
            assert (await replayed(store, event))[0] is None

    asyncio.run(main())


def part(event_id: str) -> bytes:
    return f"id: {event_id}\r\nevent: message\r\ndata: {{}}\r\n\r\n".encode()


@pytest.mark.parametrize("primed", [True, False])
def test_what_is_stored_while_a_client_returns_waits_until_it_listens(primed: bool) -> None:
    async def main() -> None:
        store, resumption = RecentEvents(), Resumption()
        begun = await store.store_event("mine", None)
        missed = await store.store_event("mine", reply("missed"))
        RESUMED.set(resumption)
        assert await replayed(store, begun) == ("mine", [(missed, reply("missed"))])
        answer = asyncio.create_task(store.store_event("mine", reply("mine")))
        await asyncio.sleep(0)
        await store.store_event("other", reply("theirs"))
        resumption.sent(part(missed))
        if primed:
            begins = await store.store_event("mine", None)
            await asyncio.sleep(0)
            assert not answer.done()
            resumption.sent(part(begins))
        await asyncio.wait_for(answer, 5)
        assert (await replayed(store, missed))[1] == [(answer.result(), reply("mine"))]  # it is stored

    asyncio.run(main())


def test_who_returns_again_waits_for_no_earlier_attempt() -> None:
    async def main() -> None:
        store, first, second = RecentEvents(), Resumption(), Resumption()
        begun = await store.store_event("mine", None)
        missed = await store.store_event("mine", reply("missed"))
        RESUMED.set(first)
        await replayed(store, begun)  # and its client does not read it
        answer = asyncio.create_task(store.store_event("mine", reply("mine")))
        await asyncio.sleep(0)
        RESUMED.set(second)
        assert [event for event, _ in (await replayed(store, begun))[1]][:1] == [missed]
        await asyncio.wait_for(answer, 5)

    asyncio.run(main())


def test_nobody_can_name_the_events_of_others() -> None:
    async def main() -> list[str]:
        store = RecentEvents()
        return [await store.store_event("a", reply("x")) for _ in range(100)]

    first, second = asyncio.run(main()), asyncio.run(main())
    assert len({*first, *second}) == 200


class Patient(MCPEnvironment):
    """Lets its clients go and come back."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.gate = asyncio.Event()

        @self.tool(concurrent=True)
        async def hang_up(ctx: Context) -> str:
            """Close the stream; return when somebody opens the gate."""
            await ctx.close_sse_stream()
            await self.gate.wait()
            return "after all"

        @self.tool(concurrent=True)
        async def open_gate() -> str:
            """Open the gate."""
            self.gate.set()
            return "open"


async def connected(http: httpx.AsyncClient, url: str) -> dict[str, str]:
    """The headers of a handshake connection."""
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opened = await http.post(
        url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, headers=headers
    )
    headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
    await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


def call(number: int, name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}


def test_a_result_that_came_after_the_stream_was_closed_is_fetched_by_its_client_only() -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(timeout=20) as http:
            mine, other = await connected(http, url), await connected(http, url)
            closed = await http.post(url, json=call(1, "hang_up"), headers=mine)  # returns: the server closed it
            assert "after all" not in closed.text
            assert "retry: 500" in closed.text
            last = [line.removeprefix("id: ") for line in closed.text.splitlines() if line.startswith("id: ")][-1]
            assert "open" in (await http.post(url, json=call(2, "open_gate"), headers=mine)).text
            for headers, expected in ((other, False), (mine, True)):
                async with http.stream("GET", url, headers={**headers, "Last-Event-ID": last}) as stream:
                    assert stream.status_code == 200
                    heard = [line async for line in _until_result(stream)] if expected else []
                    assert expected == any("after all" in line for line in heard)
                    if not expected:
                        assert "after all" not in (await stream.aread()).decode()

    with serving(Patient) as url:
        asyncio.run(asyncio.wait_for(main(f"{url}/mcp"), 60))


async def _until_result(stream: httpx.Response) -> Any:
    async for line in stream.aiter_lines():
        yield line
        if line.startswith("data: {") and "result" in json.loads(line.removeprefix("data: ")):
            return


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_clients_come_back_by_themselves(era: str) -> None:
    async def main(url: str) -> None:
        async with fastmcp.Client(url, mode=era) as client:
            waiting = asyncio.create_task(client.call_tool("hang_up"))
            while not waiting.done():
                # The first may open it before the other has closed its stream; it is one gate for all that follow.
                await client.call_tool("open_gate")
            assert (await waiting).data == "after all"

    with serving(Patient) as url:
        asyncio.run(asyncio.wait_for(main(f"{url}/mcp"), 60))
