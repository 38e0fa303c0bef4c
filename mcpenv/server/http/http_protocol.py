"""The HTTP protocol under uvicorn, with limits on heads, on the time of a request, and on unread answers."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .open_connections import PROBES, REFUSAL, OpenConnections

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a head, in bytes. A larger one is refused with 431."""

MIN_BODY_BYTES = 64 * 1024
"""Minimum bytes of an unfinished body in each period of uvicorn's ``timeout_keep_alive``."""

_ACCEPT, _EVENTS = b"accept", b"text/event-stream"
_REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FULL = JSONResponse(REFUSAL, 503, {"Retry-After": "1"})


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits.

    Its parser buffers a head of any size until it is complete, and it only closes connections that are idle after an
    answer. Here the client also has ``timeout_keep_alive`` seconds to send its first request and to complete one that
    it has begun. A body that arrives in pieces of `MIN_BODY_BYTES` extends that time. An answer that is not read for
    as long ends the connection.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open: OpenConnections = self.server_state.open_connections  # type: ignore[attr-defined]
        self._in_head = True
        self._unfinished = 0
        self._body_bytes = 0
        self._body_due = MIN_BODY_BYTES
        self._partial = False
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._too_large = False
        self._retired = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self._overdue)
        self._open.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that refers to the connection."""
        self._open.closed(self)
        self._end_deadline()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once, even with an unread answer."""
        self.transport.abort()

    def retire(self) -> None:
        """Close the connection after the response under way, or the next one, and announce that in its head.

        A client that is not told may send its next request while the connection is closed.
        """
        self._retired = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and refuse a head that has grown too large."""
        self._unfinished += len(data)
        super().data_received(data)
        # Bytes after the end of a head or of a piece of a body are not counted, because a read is small.
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")
        if self.parser is None or self.transport.is_closing():
            return  # the connection is lost, refused, or has become a WebSocket
        if self._partial:
            if not self._in_head and not self.cycle.response_complete:
                self._open.unfinished(self, self._body_bytes)
        elif self.cycle is not None and not self.cycle.response_complete:
            return  # the answer is due, not the client's next request
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self._overdue)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._partial = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header field, but drop a trailer field, because the request was accepted without it."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the size of a whole head."""
        self._in_head, self._unfinished, self._body_bytes, self._body_due = False, 0, 0, MIN_BODY_BYTES
        self._end_deadline()
        # With ": " and the end of the line. The method, the version and blanks around values are not counted.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head of a request is too large")  # ends the parsing
        app, full = self.app, self._open.full()
        if full and not self.url.partition(b"?")[0].endswith(PROBES):
            self.app = self._refuse
        super().on_headers_complete()
        self.app = app
        if (self._retired or full) and self.cycle is not None:  # None: the connection becomes a WebSocket
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Accept a piece of a body. Chunk sizes and trailers surround it."""
        self._unfinished = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body; a head comes next."""
        super().on_message_complete()
        if self._body_bytes:
            self._open.finished(self)
        self._in_head, self._unfinished, self._partial = True, 0, False
        self._end_deadline()
        if not self.cycle or not self.cycle.response_complete:
            self._open.answering(self)
            if self.scope["method"] == "GET" and any(
                _EVENTS in value for name, value in self.headers if name == _ACCEPT
            ):
                self._open.listening(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read the last answer."""
        super().on_response_complete()
        if self._partial:
            self._open.finished(self)  # the rest of the body is not kept
        if not self.transport.is_closing():
            if not self.pipeline:
                self._open.idle(self)
        elif self.transport.get_write_buffer_size() > 0:
            self._wait_for_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even with an unread answer."""
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Continue to write."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_waiting_for_reader()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        self._open.answering(self)
        self._end_deadline()
        super().handle_websocket_upgrade()
        # Break the cycle with the parser; uvicorn does so only when an HTTP connection ends.
        self.parser = None  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed, or whose head is too large."""
        if not self._too_large:
            super().send_400_response(msg)
            return
        self.transport.write(_REFUSAL)
        self.transport.close()

    async def _refuse(self, *request: Any) -> None:
        self._open.refused()
        await _FULL(*request)

    def _overdue(self) -> None:
        """Close a connection whose client has not completed its request in time."""
        self._deadline = None
        if self.flow.read_paused or (not self._in_head and self._body_bytes >= self._body_due):
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self._overdue)
            self._body_due = self._body_bytes + MIN_BODY_BYTES
        else:
            self.drop()

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _wait_for_reader(self) -> None:
        if self._unread is None:
            size = self.transport.get_write_buffer_size()
            self._unread = self.loop.call_later(self.timeout_keep_alive, self._check_reader, size)

    def _check_reader(self, size: int) -> None:
        """Close a connection whose client has read nothing of an answer since the last check."""
        self._unread = None
        if self.transport.get_write_buffer_size() >= size:
            self.drop()
        else:
            self._wait_for_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
