"""The events of a development server's pages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from mcpenv.extensions.reload import dev_events
from mcpenv.extensions.reload.dev_events import DevEvents

TIMEOUT_S = 60.0
FAILURE = {"file": "world.py", "line": 3, "message": "NameError: <b>", "source": "x", "traceback": "a\nb\n"}


class Page:
    """The reader of one stream."""

    def __init__(self, events: DevEvents) -> None:
        self._events = events
        self._body: Any = None

    async def text(self) -> str:
        """Return the next piece of the stream; an empty text at its end."""
        async with asyncio.timeout(TIMEOUT_S):
            if self._body is None:
                response = await self._events.events(Request({"type": "http"}))
                assert isinstance(response, StreamingResponse)
                self._body = aiter(response.body_iterator)
            piece = await anext(self._body, b"")
        return bytes(piece).decode()


def begun() -> DevEvents:
    events = DevEvents()
    events.reloaded(server="ab", generation=2, changed=["world.py"], took_s=0.1)
    return events


def test_a_stream_begins_with_what_is_served_and_goes_on_with_what_happens() -> None:
    async def run() -> None:
        events = begun()
        page = Page(events)
        first = await page.text()
        data = {"server": "ab", "generation": 2, "changed": ["world.py"], "took_s": 0.1}
        assert first.startswith("event: reloaded\ndata: ") and first.endswith("\n\n")
        assert json.loads(first.partition("data: ")[2]) == data
        events.loading(["world.py"])
        assert (await page.text()).startswith("event: loading\n")
        events.failed(["world.py"], FAILURE)
        failed = await page.text()
        assert failed.count("\n") == 3  # no text of the author's can begin a line
        assert json.loads(failed.partition("data: ")[2]) == {"changed": ["world.py"], **FAILURE}
        events.stop()
        assert await page.text() == ""

    asyncio.run(run())


def test_a_page_that_connects_later_is_told_the_failure_until_new_code_is_loaded() -> None:
    async def run() -> None:
        events = begun()
        events.failed(["world.py"], FAILURE)
        assert "event: failed" in await Page(events).text()
        events.loading(["world.py"])
        assert "event: failed" not in await Page(events).text()

    asyncio.run(run())


def test_a_page_that_does_not_read_loses_its_stream_and_delays_nobody(monkeypatch: Any) -> None:
    monkeypatch.setattr(dev_events, "MAX_WAITING", 3)

    async def run() -> None:
        events = begun()
        slow, quick = Page(events), Page(events)
        assert await slow.text() and await quick.text()
        for _ in range(5):
            events.loading([])
            assert await quick.text()
        assert [bool(await slow.text()) for _ in range(4)] == [True, True, True, False]

    asyncio.run(run())


def test_a_stream_of_a_stopped_server_ends_at_once() -> None:
    async def run() -> None:
        events = begun()
        events.stop()
        assert await Page(events).text() == ""

    asyncio.run(run())
