"""Late streams: the answer of a 2026-07-28 request is plain JSON, until there is something to say before it.

Most calls say nothing on their way, whatever their clients ask to be told, and plain JSON costs a third less. The
first message, or a long silence, makes an event stream of the answer (MCP 2026-07-28, basic/transports).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from starlette.types import Message, Send

STREAM: Final = "mcpenv.stream"
"""Where the endpoint keeps the request's `LateStream` in the ASGI scope."""

PING_S = 15.0
"""Silence after which a comment is sent, so that no proxy takes the connection for a dead one."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class LateStream:
    """The ASGI ``send`` of one request whose client takes an event stream as well as JSON.

    The transport sends its JSON answer by calling this; what the call says before that comes through `send`.
    """

    __slots__ = ("_begun", "_ended", "_said", "_send", "_turn")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._ended = False
        self._said = False
        self._turn: asyncio.Lock | None = None

    async def __call__(self, message: Message) -> None:
        """A part of the transport's answer."""
        if not self._begun:
            self._ended = True
            await self._send(message)
        elif message["type"] == "http.response.body":
            async with self._lock():
                self._ended = True
                event = b"event: message\r\ndata: %b\r\n\r\n" % message.get("body", b"")
                await self._send({"type": "http.response.body", "body": event})

    async def send(self, event: bytes) -> None:
        """An event before the answer; after it there is nobody to hear."""
        self._said = True
        async with self._lock():
            if self._ended:
                return
            if not self._begun:
                self._begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def keep_alive(self) -> None:
        """Break the long silence that there was, and every other one until cancelled."""
        while True:
            if not self._said:
                await self.send(b": ping\r\n\r\n")
            self._said = False
            await asyncio.sleep(PING_S)

    def _lock(self) -> asyncio.Lock:
        """The pings and the call must not send at once; most requests need no lock."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        return self._turn


async def lend_stream(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware of the low-level server: what a request says on its way goes to its `LateStream`, if it has one."""
    request: Any = ctx.request
    stream = None if request is None else request.scope.get(STREAM)
    if stream is not None:
        outbound: Any = ctx.session._request_outbound
        outbound.sink = stream
    return await call_next(ctx)


__all__ = ["PING_S", "STREAM", "LateStream", "lend_stream"]
