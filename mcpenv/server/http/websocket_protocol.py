"""The protocol of WebSockets under uvicorn, changed to close connections whose peer does not read.

uvicorn's own protocol closes a transport only when all written data has been sent. With a peer that never reads, it
would wait for ever, and so would the session that waits to send.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """The protocol that closes dead and stalled peers, and keeps idle ones."""

    def data_received(self, data: bytes) -> None:
        """Read bytes, and refuse a handshake that cannot be read."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # Lines or headers exceed the limits of websockets, and uvicorn does not send the refusal.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

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
