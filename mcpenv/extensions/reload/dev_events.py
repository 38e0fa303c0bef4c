"""The event stream by which a development server reports to its pages that code was reloaded, or does not load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import PING, PING_S, event, streaming
from mcpenv.server.extension import Access, Extension, ServerRoute

MAX_WAITING = 100
"""Maximum pending events of a page. The stream of a slower page ends, and the page reconnects."""


class DevEvents:
    """The events of one generation of code. Its methods are called on the server's event loop."""

    def __init__(self) -> None:
        self._reloaded = b""
        self._failed = b""
        self._stopped = False
        self._pages: set[asyncio.Queue[bytes | None]] = set()

    def reloaded(self, *, server: str, generation: int, changed: list[str], took_s: float | None) -> None:
        """Set the first event of every stream, which names the served code."""
        data = {"server": server, "generation": generation, "changed": changed, "took_s": took_s}
        self._reloaded = event("reloaded", None, data)

    def loading(self, changed: list[str]) -> None:
        """Report that new code is being loaded."""
        self._failed = b""
        self._publish(event("loading", None, {"changed": changed}))

    def failed(self, changed: list[str], failure: dict[str, Any]) -> None:
        """Report that new code does not load. Pages that connect later receive this, too."""
        self._failed = event("failed", None, {"changed": changed, **failure})
        self._publish(self._failed)

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        for page in list(self._pages):
            self._close(page)

    async def events(self, request: Request) -> Response:
        """Answer a request for the stream."""
        return streaming(self._stream())

    def extension(self, server: EnvServer) -> Extension:
        """Return the extension of a server that serves the stream."""
        return _DevExtension(self, server)

    async def _stream(self) -> AsyncIterator[bytes]:
        if self._stopped:
            return
        page: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._pages.add(page)
        try:
            yield self._reloaded + self._failed
            while True:
                try:
                    async with asyncio.timeout(PING_S):
                        text = await page.get()
                except TimeoutError:
                    text = PING
                if text is None:
                    return
                yield text
        finally:
            self._pages.discard(page)

    def _publish(self, text: bytes) -> None:
        for page in list(self._pages):
            if page.qsize() < MAX_WAITING:
                page.put_nowait(text)
            else:
                self._close(page)

    def _close(self, page: asyncio.Queue[bytes | None]) -> None:
        self._pages.discard(page)
        page.put_nowait(None)


class _DevExtension(Extension):
    def __init__(self, events: DevEvents, server: EnvServer) -> None:
        self._events = events
        self._server = server

    def routes(self) -> list[ServerRoute]:
        route = ServerRoute("/console/dev/events", self._events.events, Access.CONTROLLED)
        return [route] if self._server.config.has_control else []

    def end_streams(self) -> None:
        self._events.stop()
