"""`WebSocketProtocol` reads, however the bytes are divided, what uvicorn's own reads if each frame comes alone."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from mcpenv.websocket_protocol import MAX_GATHERED, WebSocketProtocol

MAX_SIZE = 100_000
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Line(asyncio.Transport):
    """A connection of which the test is the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """The test gives what it has."""

    def resume_reading(self) -> None:
        """It does anyway."""


async def _heard(protocol_class: type[WebSocketsSansIOProtocol], pieces: list[bytes]) -> tuple[list[Any], bytes, bool]:
    """What the application receives, what is sent, and whether the connection is closed."""
    received: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            message = await receive()
            received.append(message)
            if message["type"] == "websocket.disconnect":
                return

    config = Config(
        app, ws_max_size=MAX_SIZE, ws_per_message_deflate=False, ws_ping_interval=None, log_level="critical"
    )
    config.load()
    state = ServerState()
    protocol = protocol_class(config, state, {}, asyncio.get_running_loop())
    line = Line()
    protocol.connection_made(line)
    protocol.data_received(HANDSHAKE)
    await _settled()
    line.written.clear()  # one of its headers is the date
    for piece in pieces:
        if line.closing:
            break
        protocol.data_received(piece)
        await _settled()
    answers = b"".join(line.written), line.closing
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return received, *answers


async def _settled() -> None:
    """Every callback that is due has run: nothing here waits for anything else."""
    for _ in range(20):
        await asyncio.sleep(0)


def frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    """A frame as a client sends it (RFC 6455, section 5.2)."""
    mask_bit = 128 if masked else 0
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, mask_bit | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, mask_bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, mask_bit | 127, size)
    if not masked:
        return head + payload
    mask = b"\x01\x80\xfe\x7f"
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


TEXT, BINARY, PING, PONG, CLOSE = 0x81, 0x82, 0x89, 0x8A, 0x88
SIZES = st.sampled_from([0, 1, 5, 125, 126, 127, 300, MAX_GATHERED - 8, MAX_GATHERED, 65_535, 65_536, MAX_SIZE])
SMALL = st.binary(max_size=60)

whole = st.one_of(
    st.text(max_size=40).map(lambda text: [frame(TEXT, text.encode())]),
    SIZES.map(lambda size: [frame(TEXT, b"x" * size)]),
    SMALL.map(lambda data: [frame(BINARY, data)]),
    SMALL.map(lambda data: [frame(PING, data)]),
    SMALL.map(lambda data: [frame(PONG, data)]),
)
parted = st.tuples(st.sampled_from([0x01, 0x02]), st.lists(st.text(max_size=10), min_size=1, max_size=4)).map(
    lambda message: [
        frame(message[0], b"begun"),
        *(each for text in message[1][:-1] for each in (frame(0x00, text.encode()), frame(PING, b"between"))),
        frame(0x80, message[1][-1].encode()),
    ]
)
wrong = st.one_of(
    st.just([frame(TEXT, b"\xff\xfe")]),
    st.just([frame(TEXT, b"unmasked", masked=False)]),
    st.just([frame(TEXT, b"x" * (MAX_SIZE + 1))]),
    st.just([frame(0x80, b"continues nothing")]),
    st.just([frame(0x01, b"begun"), frame(TEXT, b"in the middle of another")]),
    st.just([frame(0xC1, b"of an extension that was not agreed on")]),
    st.just([frame(0x83, b"unknown")]),
    st.just([frame(PING, b"x" * 126)]),
    st.just([frame(CLOSE, struct.pack("!H", 1000) + b"bye")]),
)


@given(
    frames=st.lists(st.one_of(whole, whole, parted), max_size=6),
    end=wrong | st.none(),
    data=st.data(),
)
@settings(deadline=None)
def test_bytes_are_read_as_uvicorn_reads_them(
    frames: list[list[bytes]], end: list[bytes] | None, data: st.DataObject
) -> None:
    alone = [each for message in [*frames, end or []] for each in message]
    stream = b"".join(alone)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True) if begin < end]

    async def both() -> tuple[Any, Any]:
        return await _heard(WebSocketsSansIOProtocol, alone), await _heard(WebSocketProtocol, pieces)

    theirs, ours = asyncio.run(both())
    assert ours == theirs


def test_bytes_that_come_one_by_one_are_read_too() -> None:
    stream = frame(TEXT, "grüße".encode()) + frame(PING, b"?") + frame(TEXT, b"y" * 200) + frame(TEXT, b"")
    received, sent, _ = asyncio.run(_heard(WebSocketProtocol, [stream[at : at + 1] for at in range(len(stream))]))
    assert [message.get("text") for message in received[:-1]] == ["grüße", "y" * 200, ""]
    assert b"\x8a\x01?" in sent
