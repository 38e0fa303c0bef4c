"""The HTTP protocol under uvicorn, with a limit on request heads: the first line and the header fields."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a head, in bytes. A larger one is refused with 431."""

_REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HTTPProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit; its parser buffers a head of any size until it is complete."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True
        self._unfinished = 0
        self._too_large = False
        self._retired = False

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

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a header field, but drop a trailer field, because the request was accepted without it."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the size of a whole head."""
        self._in_head, self._unfinished = False, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head of a request is too large")  # ends the parsing
        super().on_headers_complete()
        if self._retired and self.cycle is not None:  # None: the connection becomes a WebSocket
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Accept a piece of a body. Chunk sizes and trailers surround it."""
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body; a head comes next."""
        super().on_message_complete()
        self._in_head, self._unfinished = True, 0

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
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
