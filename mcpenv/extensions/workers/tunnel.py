"""Tunnels: carry requests to the worker to which they belong, as messages over a Unix socket.

One tunnel carries one request at a time: an HTTP exchange, or a WebSocket until it closes. Both ends apply
backpressure. For the application, a broken tunnel is a client that disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from . import framing
from .asgi import event_of, message_of, request_of, scope_of
from .messages import FROM_APPLICATION, FROM_CLIENT, HTTPDisconnect, Message, OpenRequest, Returned, SocketDisconnect

logger = logging.getLogger("mcpenv")

IDLE_S = 2.0
"""Seconds for which an idle tunnel is kept for reuse."""

MAX_AHEAD = 8
"""Maximum messages of a client that are buffered before the application receives them."""


class Gone(Exception):
    """The worker has disconnected.

    Attributes:
        began: True if its answer had begun.
    """

    def __init__(self, began: bool) -> None:
        super().__init__(began)
        self.began = began


@dataclass(frozen=True, slots=True)
class _Idle:
    """The connection of an idle tunnel, and the time (monotonic seconds) until which it is kept."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    until: float


class Tunnels:
    """The near end of the tunnels to one worker.

    Args:
        path: the Unix socket on which the worker listens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[_Idle] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def carry(self, door: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the worker serve a request.

        Args:
            door: the number of the listening socket that accepted the request.

        Raises:
            Gone: the worker is not there, or disconnected during the request.
            BadMessage: the request, or a message of either end, cannot be carried.
        """
        request = request_of(scope, door)
        reader, writer = await self._tunnel()
        reusable = False
        try:
            framing.send(writer, request)
            await _exchange(receive, send, reader, writer)
            reusable = True
        finally:
            if reusable:
                self._keep(_Idle(reader, writer, time.monotonic() + IDLE_S))
            else:
                writer.close()

    def close(self) -> None:
        """Close the idle tunnels."""
        for idle in self._idle:
            idle.writer.close()
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _keep(self, idle: _Idle) -> None:
        self._idle.append(idle)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close idle tunnels whose time is over."""
        self._timer = None
        now = time.monotonic()
        while self._idle and self._idle[0].until <= now:
            self._idle.popleft().writer.close()
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(self._idle[0].until - now, self._close_idle)

    async def _tunnel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            idle = self._idle.pop()
            if not idle.reader.at_eof():
                return idle.reader, idle.writer
            idle.writer.close()
        try:
            return await asyncio.open_unix_connection(self._path)
        except OSError as error:
            raise Gone(began=False) from error


async def _exchange(receive: Receive, send: Send, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry the messages of both ends until the application has returned."""
    asking = asyncio.ensure_future(_carry_events(receive, writer))
    answering = asyncio.ensure_future(_carry_answer(reader, send))
    try:
        await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            asking.result()  # raises if an event could not be carried
        await answering
    finally:
        asking.cancel()
        answering.cancel()
        await asyncio.wait({asking, answering})


async def _carry_answer(reader: asyncio.StreamReader, send: Send) -> None:
    began = False
    while True:
        try:
            message = await framing.receive(reader, FROM_APPLICATION)
        except framing.Closed as error:
            raise Gone(began) from error
        if isinstance(message, Returned):
            if message.failed:
                raise RuntimeError("the worker to which a request belongs failed to answer it")  # see its log
            return
        began = True
        await send(event_of(message))


async def _carry_events(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Send the client's events to the worker until the client disconnects."""
    with contextlib.suppress(OSError):  # the worker has disconnected: `_carry_answer` raises `Gone`
        while True:
            message = message_of(await receive())
            framing.send(writer, message)
            if isinstance(message, HTTPDisconnect | SocketDisconnect):
                return
            await writer.drain()


class TunnelServer:
    """The far end of tunnels, which serves their requests.

    Args:
        applications: the applications of the server's doors, by number.
    """

    def __init__(self, applications: list[ASGIApp]) -> None:
        self._applications = applications
        self._tunnels: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @contextlib.asynccontextmanager
    async def running(self, path: Path) -> AsyncIterator[None]:
        """Listen while the block runs; then cancel the requests that are still running."""
        server = await asyncio.start_unix_server(self._begin, path)
        try:
            yield
        finally:
            server.close()
            for task in self._tunnels:
                task.cancel()
            if self._tunnels:
                await asyncio.wait(self._tunnels)

    async def idle(self) -> None:
        """Wait until no request is being served."""
        await self._at_rest.wait()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(_Incoming(reader), writer))
        self._tunnels.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tunnels.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a tunnel between workers broke", exc_info=task.exception())

    async def _serve(self, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await incoming.next()) is not None:
                if not isinstance(message, OpenRequest):
                    continue  # a late message of a request that has been answered
                self._busy += 1
                self._at_rest.clear()
                try:
                    await _serve_one(self._applications[message.door], scope_of(message), incoming, writer)
                finally:
                    self._busy -= 1
                    if self._busy == 0:
                        self._at_rest.set()
        finally:
            incoming.close()
            writer.close()


class _Incoming:
    """The messages of a tunnel. Cancelling a wait for a message loses none, because a task reads the stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(MAX_AHEAD)
        self._reading = asyncio.ensure_future(self._read())
        self._over = False

    async def next(self) -> Message | None:
        """Return the next message; None once the other end has disconnected, or has sent one that does not fit."""
        if self._over:
            return None
        message = await self._messages.get()
        self._over = message is None
        return message

    def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()

    async def _read(self) -> None:
        try:
            while True:
                await self._messages.put(await framing.receive(self._reader, FROM_CLIENT))
        except framing.Closed:
            pass
        except framing.BadMessage as error:
            logger.error("a tunnel between workers is closed: %s", error)
        await self._messages.put(None)


class _Exchange:
    """The ASGI callables of one request at the far end."""

    def __init__(self, scope: Scope, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        self._disconnect = HTTPDisconnect() if scope["type"] == "http" else SocketDisconnect(code=1006)
        self._incoming = incoming
        self._writer = writer
        self._left = False

    async def receive(self) -> Event:
        """Return the client's next event; the disconnect event once the client or the tunnel has disconnected."""
        message = None if self._left else await self._incoming.next()
        if message is None:
            message = self._disconnect
        self._left = isinstance(message, HTTPDisconnect | SocketDisconnect)
        return event_of(message)

    async def send(self, event: Event) -> None:
        """Send an event to the client.

        Raises:
            OSError: the other worker has disconnected.
            BadMessage: the event cannot be carried.
        """
        if self._writer.is_closing():
            raise OSError("the worker that forwarded the request has disconnected")
        framing.send(self._writer, message_of(event))
        await self._writer.drain()


async def _serve_one(app: ASGIApp, scope: Scope, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
    exchange, failed = _Exchange(scope, incoming, writer), False
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception:  # the boundary of a request, as in an HTTP server
        if writer.is_closing():
            return
        logger.exception("a request that came from another worker failed")
        failed = True
    framing.send(writer, Returned(failed=failed))
    with contextlib.suppress(OSError):  # the other worker has disconnected
        await writer.drain()
