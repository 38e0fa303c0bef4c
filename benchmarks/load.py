"""The load generator: connections that send a request, wait for the answer, and repeat. One thread, no task per call.

It shares the machine with the server that it measures, so it does little work: requests are built once, answers are
searched for a mark and not parsed. All sides are called by the same code.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httptools
import uvloop

ANSWER_S = 120.0
"""Seconds within which an answer comes, or else the run fails."""


T = TypeVar("T")


class WrongAnswer(Exception):
    """The error for an answer without the right mark. Its text is the beginning of the answer."""


@dataclass(slots=True)
class Round:
    """The result of one round of one side.

    Attributes:
        calls: how many were answered.
        wall_s: seconds from the first question to the last answer.
        cpu_s: seconds of processor time that the server took meanwhile.
        latencies: seconds of each call.
    """

    calls: int
    wall_s: float
    cpu_s: float
    latencies: list[float] = field(repr=False)

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Return the microseconds of the server's processor time for a call."""
        return self.cpu_s / self.calls * 1e6

    def percentile_ms(self, percent: float) -> float:
        """Return the milliseconds within which that share of the calls was answered (nearest rank)."""
        return percentile(self.latencies, percent) * 1e3


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many percent do not exceed (nearest rank).

    Raises:
        IndexError: there are no values.
    """
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


class Connection(asyncio.Protocol):
    """The connection with one request at a time. Subclasses detect the end of an answer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] | None = None
        self._done: asyncio.Future[None] | None = None
        self._request = self._mark = b""
        self._until = self._sent = 0.0
        self._expected = 0
        self._latencies: list[float] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request in flight."""
        self._fail(ConnectionError(f"the connection was closed: {exc}"))

    async def ask(self, request: bytes, mark: bytes = b"") -> bytes:
        """Send one request and return its answer.

        Raises:
            WrongAnswer: the answer does not contain the mark.
            ConnectionError: the other end closed.
            TimeoutError: there is none within `ANSWER_S`.
        """
        self._answer = self._loop.create_future()
        self.transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer
        if mark not in answer:
            raise WrongAnswer(answer[:2000].decode(errors="replace"))
        return answer

    async def ask_often(self, request: bytes, mark: bytes, times: int, ahead: int) -> None:
        """Send the same request so many times, with up to ``ahead`` in flight, which is faster than one by one.

        Raises:
            WrongAnswer, ConnectionError, TimeoutError: as `ask`.
        """
        for begun in range(0, times, ahead):
            self._expected = min(ahead, times - begun)
            self._mark, self._done = mark, self._loop.create_future()
            self.transport.write(request * self._expected)
            async with asyncio.timeout(ANSWER_S):
                await self._done

    async def repeat(self, request: bytes, mark: bytes, until: float, latencies: list[float]) -> None:
        """Repeat a request until that time of ``time.perf_counter``. The last answer may arrive after it.

        Args:
            latencies: gets the seconds of each call.

        Raises:
            WrongAnswer, ConnectionError, TimeoutError: as `ask`.
        """
        self._request, self._mark, self._until, self._latencies = request, mark, until, latencies
        self._done = self._loop.create_future()
        self._sent = time.perf_counter()
        self.transport.write(request)
        async with asyncio.timeout(until - self._sent + ANSWER_S):
            await self._done

    def close(self) -> None:
        """Close without a closing handshake."""
        self.transport.close()

    def _answered(self, answer: bytes) -> None:
        if self._done is None:
            assert self._answer is not None
            if not self._answer.done():
                self._answer.set_result(answer)
            return
        now = time.perf_counter()
        if self._mark not in answer:
            self._fail(WrongAnswer(answer[:2000].decode(errors="replace")))
            return
        if self._expected:
            self._expected -= 1
            if not self._expected:
                done, self._done = self._done, None
                done.set_result(None)
            return
        self._latencies.append(now - self._sent)
        if now < self._until:
            self._sent = now
            self.transport.write(self._request)
        else:
            done, self._done = self._done, None
            done.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiting, self._done = self._done or self._answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


class HTTPConnection(Connection):
    """The HTTP/1.1 connection that is kept alive. A body of any framing is an answer, an event stream at its end."""

    def __init__(self) -> None:
        super().__init__()
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.status = 0

    def data_received(self, data: bytes) -> None:
        """Parse bytes."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """Begin a head."""
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Accept a field of the head."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        """Accept a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Complete an answer."""
        body = self._body
        answer = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self.status = self._parser.get_status_code()
        self._answered(answer)


class WebSocketConnection(Connection):
    """The WebSocket whose answers are text frames. Pings are answered."""

    def __init__(self) -> None:
        super().__init__()
        self._open = False
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Parse bytes."""
        if self._buffer:
            data = self._buffer + data
        while data:
            if not self._open:
                head, found, rest = data.partition(b"\r\n\r\n")
                if not found:
                    break
                self._open, data = True, rest
                self._answered(head)
                continue
            start, end = payload_of(data)
            if len(data) < end:
                break
            kind, payload, data = data[0], data[start:end], data[end:]
            if kind == TEXT:
                self._answered(payload)
            elif kind == PING:
                self.transport.write(frame(payload, kind=PONG))
            elif kind == CLOSE:
                self._fail(ConnectionError(f"the server closed the WebSocket: {payload[2:].decode()}"))
                self.transport.close()
        self._buffer = data

    def close(self) -> None:
        """Send a close frame and close."""
        self.transport.write(GOODBYE)
        self.transport.close()


TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
"""First bytes of frames that are whole."""

_MASK = os.urandom(4)


def payload_of(data: bytes) -> tuple[int, int]:
    """Return where the payload of a server's frame begins and ends. The end is beyond a head that is incomplete."""
    if len(data) < 2:
        return 2, 2
    size = data[1]
    if size < 126:
        return 2, 2 + size
    start = 4 if size == 126 else 10
    if len(data) < start:
        return start, start
    return start, start + int.from_bytes(data[2:start], "big")


def frame(payload: bytes, kind: int = TEXT) -> bytes:
    """Return a client's WebSocket frame, masked: a text, unless ``kind`` is given."""
    size = len(payload)
    if size < 126:
        head = bytes((kind, 0x80 | size))
    elif size < 65536:
        head = bytes((kind, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((kind, 0x80 | 127)) + size.to_bytes(8, "big")
    whole = (_MASK * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
    return head + _MASK + masked


GOODBYE = frame((1000).to_bytes(2, "big"), kind=CLOSE)


def post(url: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> bytes:
    """Return a request with a JSON body."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    fields = {"host": parts.netloc, "content-type": "application/json", "accept": "application/json, text/event-stream"}
    fields |= headers or {}
    fields["content-length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def open_http(url: str) -> HTTPConnection:
    """Return a connection to the server of a URL."""
    _, connection = await asyncio.get_running_loop().create_connection(HTTPConnection, *address_of(url))
    return connection


async def open_websocket(url: str, headers: str = "") -> WebSocketConnection:
    """Return a WebSocket to a URL, after its handshake.

    Args:
        headers: further lines of the request, each with its line end.

    Raises:
        WrongAnswer: the server refuses it.
    """
    _, connection = await asyncio.get_running_loop().create_connection(WebSocketConnection, *address_of(url))
    await connection.ask(upgrade(url, headers), UPGRADED)
    return connection


UPGRADED = b"HTTP/1.1 101"
"""How the answer to an `upgrade` begins that is granted."""


def upgrade(url: str, headers: str = "") -> bytes:
    """Return the request for a WebSocket at a URL."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n"
    ).encode()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that makes calls, in the fastest event loop available."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def address_of(url: str) -> tuple[str, int]:
    """Return host and port."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    assert host is not None and port is not None, url
    return host, port


Work = Callable[[float, list[float]], Awaitable[None]]
"""What one client does until a moment of ``time.perf_counter``, adding the seconds of each call to the list."""


async def one_round(clients: Sequence[Work], seconds: float, cpu: Callable[[], float]) -> Round:
    """Run all clients at once for so long, and until the last of them has its answer.

    Args:
        cpu: reads the processor time of the server, in seconds.
    """
    latencies: list[float] = []
    with no_collection(), _awake():
        began, cpu_began = time.perf_counter(), cpu()
        await asyncio.gather(*(client(began + seconds, latencies) for client in clients))
        wall_s, cpu_s = time.perf_counter() - began, cpu() - cpu_began
    return Round(len(latencies), wall_s, cpu_s, latencies)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector of this process, whose pauses would be counted for the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _awake() -> Iterator[None]:
    """Keep the event loop from sleeping: waking a process costs the writer more than the write does.

    Only a slow server would pay that for each answer. The answers of a fast one come while the generator still reads
    the last.
    """
    loop = asyncio.get_running_loop()
    awake = True

    def turn() -> None:
        if awake:
            loop.call_soon(turn)

    turn()
    try:
        yield
    finally:
        awake = False


@contextlib.asynccontextmanager
async def closing(connections: Sequence[Connection]) -> AsyncIterator[None]:
    """Close the connections after the block."""
    try:
        yield
    finally:
        for connection in connections:
            connection.close()
