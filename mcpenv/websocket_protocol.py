"""WebSockets under uvicorn: a peer that is gone, or does not read, is found and let go; one that waits is not.

So is one whose handshake cannot be read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN

_TEXT = Opcode.TEXT

MAX_UNREAD = 8
MAX_UNREAD_TEXT = 65_536
"""Messages that wait to be received, or characters of the last; with more of either the socket is not read."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with another end for connections whose peer does not read, and a shorter way for whole text messages.

    uvicorn closes a transport and waits until what is still to be sent is sent: for a peer that never reads, for ever,
    and with it the session that waits to send.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = self._inbox = _Inbox(self.loop)  # type: ignore[assignment]

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        if len(self.frames) > 1 or self.close_sent or self.curr_msg_data_type != "text":
            super().send_receive_event_to_app()
            return
        try:
            text = str(self.frames[0], "utf-8")
        except UnicodeDecodeError:
            super().send_receive_event_to_app()  # knows what to answer
            return
        self.frames = []
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})
        # uvicorn stops reading after each message, and begins again when it is received.
        if (len(self._inbox) > MAX_UNREAD or len(text) > MAX_UNREAD_TEXT) and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        """Send what the application says."""
        text = message.get("text")
        if (
            text is None
            or not self.handshake_complete
            or self.close_sent
            or self.disconnected
            or not self.writable.is_set()
            or self.conn.state is not OPEN
        ):
            await super().send(message)
        else:
            self.transport.write(Frame(_TEXT, text.encode()).serialize(mask=False))

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


class _Inbox:
    """What has come and was not received yet; an `asyncio.Queue` for one reader, whose ways are long."""

    __slots__ = ("_arrived", "_loop", "_reader")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._arrived)

    def empty(self) -> bool:
        return not self._arrived

    def put_nowait(self, message: Any) -> None:
        self._arrived.append(message)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        while not self._arrived:
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._arrived.popleft()


__all__ = ["WebSocketProtocol"]
