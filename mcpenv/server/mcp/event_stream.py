"""The late streams: a 2026-07-28 request is answered with plain JSON, unless a message must be sent before the answer.

Most calls send no progress and no logs, and plain JSON costs a third less. The first message, or a long silence,
turns the answer into an event stream (MCP 2026-07-28, basic/transports).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from starlette.types import Message, Send

STREAM: Final = "mcpenv.stream"
"""The key of the request's `LateStream` in the ASGI scope."""

PING_S = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy closes the connection as dead."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class LateStream:
    """The ASGI ``send`` of one request whose client takes an event stream as well as JSON.

    The transport sends its JSON answer by calling this object. Messages of the call before the answer use `send`.
    """

    __slots__ = ("_begun", "_ended", "_lock", "_send", "_written")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._ended = False
        self._written = False
        self._lock = asyncio.Lock()  # pings and the call must not send at once

    async def __call__(self, message: Message) -> None:
        """Send a part of the transport's answer."""
        if not self._begun:
            self._ended = True
            await self._send(message)
        elif message["type"] == "http.response.body":
            async with self._lock:
                self._ended = True
                event = b"event: message\r\ndata: %b\r\n\r\n" % message.get("body", b"")
                await self._send({"type": "http.response.body", "body": event})

    async def send(self, event: bytes) -> None:
        """Send an event before the answer; drop it after the answer."""
        self._written = True
        async with self._lock:
            if self._ended:
                return
            if not self._begun:
                self._begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def keep_alive(self) -> None:
        """Send a comment after each silence of `PING_S`, until cancelled."""
        while True:
            if not self._written:
                await self.send(b": ping\r\n\r\n")
            self._written = False
            await asyncio.sleep(PING_S)


async def lend_stream(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Send a request's messages to its `LateStream`, if it has one: middleware of the low-level server."""
    request: Any = ctx.request
    stream = None if request is None else request.scope.get(STREAM)
    if stream is not None:
        outbound: Any = ctx.session._request_outbound
        outbound.sink = stream
    return await call_next(ctx)


__all__ = ["PING_S", "STREAM", "LateStream", "lend_stream"]
