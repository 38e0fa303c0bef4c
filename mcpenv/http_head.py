"""Heads of HTTP requests, their first line and header fields: bounded, so that nobody fills the memory with them."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""The largest head."""

_REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's, with a limit: its parser keeps a head of any size until it is complete."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._unfinished = 0
        self._too_large = False

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._unfinished += len(data)
        super().data_received(data)
        # What a read holds beyond the end of a head or of a piece of a body is not counted: a read is small.
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field is complete, or a trailer field: the request was let through without that."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._in_head, self._unfinished = False, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head of a request is too large")  # ends the parsing, and goes no further
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body; around it are chunk sizes and trailers."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A body is complete; what comes next is a head."""
        super().on_message_complete()
        self._in_head, self._unfinished = True, 0

    def handle_websocket_upgrade(self) -> None:
        """The connection is a WebSocket's from now on."""
        super().handle_websocket_upgrade()
        # The parser holds this, and this the parser: at the end of an HTTP connection uvicorn sees to it itself.
        self.parser = None  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed, or is too large."""
        if not self._too_large:
            super().send_400_response(msg)
            return
        self.transport.write(_REFUSAL)
        self.transport.close()


__all__ = ["MAX_HEAD_BYTES", "HTTPProtocol"]
