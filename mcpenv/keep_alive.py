"""Keep-alive of WebSockets: a peer that is gone, or does not read, is found and let go; one that waits is not.

So is one whose handshake cannot be read.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with another end for connections whose peer does not read.

    uvicorn closes a transport and waits until what is still to be sent is sent: for a peer that never reads, for ever,
    and with it the session that waits to send.
    """

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # Lines or headers beyond websockets' limits: uvicorn passes over the refusal, and nobody would ever answer.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def keepalive_timeout(self) -> None:
        """No pong came in time."""
        if self.read_paused and self.writable.is_set():
            # Not read, rather than not sent: more frames have come than wait behind a step (`MAX_BACKLOG`).
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self.transport.abort()

    def handle_close(self, event: Any) -> None:
        """The peer says goodbye."""
        super().handle_close(event)
        self._give_up_later()

    def shutdown(self) -> None:
        """The server ends."""
        super().shutdown()
        self._give_up_later()

    def _give_up_later(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.loop.call_later(self.ping_timeout or self.close_timeout, self.transport.abort)


__all__ = ["WebSocketProtocol"]
