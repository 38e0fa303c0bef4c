"""WebSockets under uvicorn: a peer that is gone, or does not read, is found and let go; one that waits is not.

So is one whose handshake cannot be read.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

try:
    from websockets.speedups import apply_mask
except ImportError:  # there is no compiled one for this machine
    from websockets.utils import apply_mask

# First bytes of frames (RFC 6455, section 5.2): a text that is a whole message; a text or binary message that goes on
# in other frames; the last of those.
_WHOLE_TEXT, _FIRST_FRAGMENTS, _LAST_FRAGMENT = 0x81, (0x01, 0x02), 0x80

MAX_UNREAD = 8
MAX_UNREAD_TEXT = 65_536
"""Messages that wait to be received, or characters of the last; with more of either the socket is not read."""

MAX_GATHERED = 16_384
"""Bytes of a frame that is waited for until it is whole; of larger ones the pieces are given to websockets."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with another end for connections whose peer does not read, and a shorter way for whole text messages.

    uvicorn closes a transport and waits until what is still to be sent is sent: for a peer that never reads, for ever,
    and with it the session that waits to send.

    websockets' reader takes as long for a frame as a small step. So the bytes are divided here into frames: a whole
    text message is read at once, all else is given to websockets, frame by frame.

    Attributes:
        inbox: what `receive` gives, for an application that is called with that very method and wants to hear sooner.
    """

    # uvicorn's among them: what is asked for every frame stands together, and not in a dict of fifty names.
    __slots__ = (
        "_in_fragments",
        "_max_size",
        "_may_write",
        "_open",
        "_owed",
        "_part",
        "close_sent",
        "disconnected",
        "handshake_complete",
        "handshake_initiated",
        "inbox",
        "loop",
        "transport",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = self.inbox = Inbox(self.loop, self.send_at_once)  # type: ignore[assignment]
        self._max_size = self.config.ws_max_size
        # What is asked for every frame, and noted where it can change: to ask websockets and asyncio takes longer.
        self._open, self._may_write = False, True
        self._owed = 0  # bytes to come of a frame that websockets reads
        self._part = b""  # the beginning of a frame
        self._in_fragments = False  # a message has begun that comes in several frames

    def send_receive_event_to_app(self) -> None:
        """A message that websockets read is whole."""
        if len(self.frames) > 1 or self.close_sent or self.curr_msg_data_type != "text":
            super().send_receive_event_to_app()
            return
        try:
            text = str(self.frames[0], "utf-8")
        except UnicodeDecodeError:
            super().send_receive_event_to_app()  # knows what to answer
            return
        self.frames = []
        if not self.inbox.hears(text):
            self._deliver(text)

    def _deliver(self, text: str) -> None:
        inbox = self.inbox
        inbox.put_nowait({"type": "websocket.receive", "text": text})
        # uvicorn stops reading after each message, and begins again when it is received.
        if (len(inbox) > MAX_UNREAD or len(text) > MAX_UNREAD_TEXT) and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        """Send what the application says."""
        text = message.get("text")
        if text is None or not self.send_at_once(text):
            try:
                await super().send(message)
            finally:
                self._note_state()

    def send_at_once(self, text: str) -> bool:
        """Send a text message now; False, and nothing done, if that has to wait, or the connection is not open."""
        if not (self._open and self._may_write and self.handshake_complete) or self.close_sent or self.disconnected:
            return False
        payload = text.encode()
        size = len(payload)
        if size < 126:
            frame = bytes((_WHOLE_TEXT, size)) + payload
        elif size < 65_536:
            frame = b"\x81\x7e" + size.to_bytes(2, "big") + payload
        else:
            frame = b"\x81\x7f" + size.to_bytes(8, "big") + payload
        self.transport.write(frame)
        return True

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if not self.handshake_initiated:
            self._read_by_websockets(data)
            return
        if self._owed:
            owed = self._owed
            self._owed = max(owed - len(data), 0)
            self._read_by_websockets(data[:owed])
            data = data[owed:]
        if self._part:
            data, self._part = self._part + data, b""
        begin, end = 0, len(data)
        while begin < end:
            at = begin + 6
            if at > end and (end - begin < 2 or data[begin + 1] >= 128):
                self._part = data[begin:]
                return
            length = data[begin + 1] - 128  # the first bit says that it is masked, as a client's frame is
            if length > 125:
                extended = 2 if length == 126 else 8
                at += extended
                if at > end:
                    self._part = data[begin:]
                    return
                length = int.from_bytes(data[begin + 2 : begin + 2 + extended], "big")
            stop = at + length
            if length < 0:
                self._owed = sys.maxsize  # a fault, after which websockets reads nothing more
                self._read_by_websockets(data[begin:])
                return
            first = data[begin]
            if first != _WHOLE_TEXT:
                kind = first & 0x8F  # without the bits of extensions
                self._in_fragments = kind in _FIRST_FRAGMENTS or (self._in_fragments and kind != _LAST_FRAGMENT)
            if stop > end:
                if stop - begin <= MAX_GATHERED:
                    self._part = data[begin:]
                else:
                    self._owed = stop - end
                    self._read_by_websockets(data[begin:])
                return
            text: str | None = None
            may_hear = self._open and not self._in_fragments and not self.close_sent
            if first == _WHOLE_TEXT and may_hear and length <= self._max_size:
                try:
                    text = str(apply_mask(data[at:stop], data[at - 4 : at]), "utf-8")
                except UnicodeDecodeError:
                    text = None  # websockets knows what to answer
            if text is None:
                self._read_by_websockets(data[begin:stop])
            elif not self.inbox.hears(text):
                self._deliver(text)
            begin = stop

    def _read_by_websockets(self, data: bytes) -> None:
        super().data_received(data)
        self._note_state()
        if self.conn.handshake_exc is not None and not self.handshake_initiated and not self.transport.is_closing():
            # Lines or headers beyond websockets' limits: uvicorn passes over the refusal, and nobody would ever answer.
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def _note_state(self) -> None:
        self._open = self.conn.state is OPEN

    def pause_writing(self) -> None:
        """The peer does not read what is sent."""
        super().pause_writing()
        self._may_write = False

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._may_write = True

    def keepalive_timeout(self) -> None:
        """No pong came in time."""
        if self.read_paused and self.writable.is_set():
            # Not read, rather than not sent: more frames have come than wait behind a step (`MAX_BACKLOG`).
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._note_state()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(exc)
        # Or they would hold each other until the collector comes, which is after thousands of connections.
        self.inbox.send_at_once = _not_now
        self.conn.parser.close()

    def handle_close(self, event: Any) -> None:
        """The peer says goodbye."""
        super().handle_close(event)
        self._give_up_later()

    def shutdown(self) -> None:
        """The server ends."""
        super().shutdown()
        self._note_state()
        self._give_up_later()

    def _give_up_later(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.loop.call_later(self.ping_timeout or self.close_timeout, self.transport.abort)


def _not_now(text: str) -> bool:
    return False


class Inbox:
    """What has come and was not received yet; an `asyncio.Queue` for one reader, whose ways are long.

    Attributes:
        listener: takes text messages where they come, instead of the reader. To be set while nothing waits here.
        send_at_once: sends a text message now; False if that has to wait, or the connection is no longer open.
    """

    __slots__ = ("_arrived", "_loop", "_reader", "listener", "send_at_once")

    def __init__(self, loop: asyncio.AbstractEventLoop, send_at_once: Callable[[str], bool]) -> None:
        self.send_at_once = send_at_once
        self._loop = loop
        self._arrived: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.listener: Callable[[str], None] | None = None

    def __len__(self) -> int:
        return len(self._arrived)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._arrived

    def put_nowait(self, message: Any) -> None:
        """Something came."""
        self._arrived.append(message)
        self.wake()

    def hears(self, text: str) -> bool:
        """Give it to the listener; False if none listens, or the reader is about to go on: then it comes after that."""
        listener, reader = self.listener, self._reader
        if listener is None or reader is None or reader.done():
            return False
        listener(text)
        return True

    def wake(self) -> None:
        """`wait` is to return."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self) -> None:
        """Return when something comes, or `wake` is called."""
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def get(self) -> Any:
        """What came first, when there is something."""
        while not self._arrived:
            await self.wait()
        return self._arrived.popleft()


__all__ = ["Inbox", "WebSocketProtocol"]
