"""The protocol of WebSockets under uvicorn, changed to close stalled connections and to bound the work of a read.

uvicorn's own protocol closes a transport only when all written data has been sent. With a peer that never reads, it
would wait for ever, and so would the session that waits to send. It also parses all frames of a read at once. A read
of 256 kB may have 40,000 empty frames, which would hold the event loop for a quarter of a second each time.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from mcpenv_client.wire.protocol import encode_reply

from .open_connections import FULL, REFUSAL, USED, OpenConnections

PIECE = 8 * 1024
"""Bytes that are parsed at a time."""

MANY = 32
"""Frames in one piece after which the rest of a read waits for the next run of the event loop."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """The protocol that closes dead and stalled peers, and keeps idle ones.

    While `_rest` has bytes of a read, the socket is not read. They are parsed as the application takes messages, or in
    the next run of the event loop if they have brought none.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open: OpenConnections = options["server_state"].open_connections
        self._rest = b""
        self._next_piece: asyncio.Handle | None = None
        self._partial = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first message."""
        super().connection_made(transport)
        self._open.listening(self)

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read bytes, and refuse a handshake that cannot be read."""
        if len(data) <= PIECE and not self._rest:
            super().data_received(data)
        else:
            self._rest += data
            self._parse_rest()
        unfinished = len(self.conn.reader.buffer) + (len(self.frames[0]) if self.frames else 0)
        if unfinished > PIECE:
            self._partial = True
            self._open.unfinished(self, unfinished)
        elif self._partial:
            self._partial = False
            self._open.finished(self)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # Lines or headers exceed the limits of websockets, and uvicorn does not send the refusal.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Run the application, and offer it to say that the connection is used."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            cast(dict[str, object], self.scope["extensions"])[USED] = {}

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the application. After its close, the connection may be closed to make room.

        Raises:
            ClientDisconnected: the connection is closed, also because it cannot be used: all others are in use.
        """
        kind: str = message["type"]
        if kind == USED:
            if self._open.full():
                self._open.refused()
                await super().send({"type": "websocket.send", "text": encode_reply("error", REFUSAL, None)})
                await super().send({"type": "websocket.close", "code": 1013, "reason": FULL})
                self._open.listening(self)
                raise ClientDisconnected
            self._open.answering(self)
            return
        await super().send(message)
        if self.close_sent:
            self._open.listening(self)

    async def run_asgi(self) -> None:
        """Run the application. uvicorn logs an error after a refusal with a body, which completes no handshake."""
        app = self.app

        async def completing(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            self.handshake_complete = self.handshake_complete or self.initial_response is not None

        self.app = completing
        try:
            await super().run_asgi()
        finally:
            self.app = app  # without a cycle, the connection is freed at once

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, and read more of them after the last one."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            if self._rest:
                self._parse_rest()
            else:
                self._resume_reading()
        return message

    def _parse_rest(self) -> None:
        """Parse pieces of the rest until one has many frames, or until all is parsed."""
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        frames = 0
        while self._rest and frames <= MANY and self.conn.parser_exc is None:
            piece, self._rest = self._rest[:PIECE], self._rest[PIECE:]
            self.conn.receive_data(piece)
            frames = len(self.conn.events)
            if self.conn.parser_exc is None:
                self.handle_events()
        # After its own close the application takes no message, and the peer's close is behind those in the rest.
        awaits_more = self.close_sent or self.queue.empty()
        if self.conn.parser_exc is not None:
            self._rest = b""
            self.handle_parser_exception()
        elif self._rest and not self.transport.is_closing():
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
            if awaits_more:
                self._next_piece = self.loop.call_soon(self._parse_rest)
        elif self.read_paused and awaits_more:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self.read_paused = False
        self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Append a fragment to its message; a list of empty ones would grow without limit."""
        if not isinstance(self.frames[0], bytearray):
            self.frames = [bytearray(self.frames[0])]  # type: ignore[list-item]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        """Abort the connection, unless its pong may be behind frames that are not read yet."""
        if self.read_paused and self.writable.is_set():
            # More frames have arrived than may be queued (`MAX_BACKLOG`).
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application, and break the cycle of the connection and its parser."""
        self._rest = b""
        self._open.closed(self)
        super().connection_lost(exc)
        self.conn.parser.close()

    def handle_close(self, event: Any) -> None:
        """Answer the peer's close."""
        super().handle_close(event)
        self._abort_later()

    def shutdown(self) -> None:
        """Close, because the server ends."""
        super().shutdown()
        self._abort_later()

    def _abort_later(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.loop.call_later(self.ping_timeout or self.close_timeout, self.transport.abort)
