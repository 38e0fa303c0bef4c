"""Tunnels: carry requests to the worker to which they belong, as ASGI messages over a Unix socket.

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
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import framing

logger = logging.getLogger("mcpenv")

IDLE_S = 2.0
"""Seconds for which an idle tunnel is kept for reuse."""

_SCOPE_KEYS = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers",
    "client", "server", "subprotocols", "extensions",
)  # fmt: skip

MAX_AHEAD = 8
"""Maximum messages of a client that are buffered before the application receives them."""

_MESSAGE, _END = "message", "end"
"""Kinds of frames from the far end: an ASGI message, or the application's return with a flag for failure."""


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
        """
        reader, writer = await self._tunnel()
        reusable = False
        try:
            framing.send(writer, (door, {key: scope[key] for key in _SCOPE_KEYS if key in scope}))
            hearing = asyncio.ensure_future(_pass_on(receive, writer))
            try:
                await _answers(reader, send)
            finally:
                hearing.cancel()
                await asyncio.wait({hearing})
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


async def _answers(reader: asyncio.StreamReader, send: Send) -> None:
    began = False
    while True:
        try:
            message = await framing.receive(reader)
        except framing.Closed as error:
            raise Gone(began) from error
        if message[0] == _END:
            if message[1]:
                raise RuntimeError("the worker to which a request belongs failed to answer it")  # see its log
            return
        began = True
        await send(message[1])


async def _pass_on(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Send the client's messages to the worker until the client disconnects."""
    with contextlib.suppress(OSError):  # the worker has disconnected: `_answers` raises `Gone`
        while True:
            message = await receive()
            framing.send(writer, message)
            if message["type"].endswith(".disconnect"):
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
                if isinstance(message, dict):
                    continue  # a late message of a request that has been answered
                self._busy += 1
                self._at_rest.clear()
                try:
                    await _one(self._applications[message[0]], message[1], incoming, writer)
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
        self._messages: asyncio.Queue[Any] = asyncio.Queue(MAX_AHEAD)
        self._reading = asyncio.ensure_future(self._read())
        self._over = False

    async def next(self) -> Any:
        """Return the next message; None once the other end has disconnected."""
        if self._over:
            return None
        message = await self._messages.get()
        self._over = message is None
        return message

    def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()

    async def _read(self) -> None:
        message: Any = ()
        while message is not None:
            try:
                message = await framing.receive(self._reader)
            except framing.Closed:
                message = None
            await self._messages.put(message)


class _Exchange:
    """The ASGI callables of one request at the far end."""

    def __init__(self, scope: Scope, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
        self._disconnect: Message = {"type": f"{scope['type']}.disconnect", "code": 1006}
        self._incoming = incoming
        self._writer = writer
        self._left = False

    async def receive(self) -> Message:
        """Return the client's next message; the disconnect message once the client or the tunnel has disconnected."""
        if self._left:
            return self._disconnect
        message: Message | None = await self._incoming.next()
        if message is None:
            message = self._disconnect
        self._left = message["type"] == self._disconnect["type"]
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client.

        Raises:
            OSError: the other worker has disconnected.
        """
        if self._writer.is_closing():
            raise OSError("the worker that forwarded the request has disconnected")
        if "headers" in message:
            message = {**message, "headers": [(bytes(name), bytes(value)) for name, value in message["headers"]]}
        framing.send(self._writer, (_MESSAGE, message))
        await self._writer.drain()


async def _one(app: ASGIApp, scope: Scope, incoming: _Incoming, writer: asyncio.StreamWriter) -> None:
    exchange, failed = _Exchange(scope, incoming, writer), False
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception:  # the boundary of a request, as in an HTTP server
        if writer.is_closing():
            return
        logger.exception("a request that came from another worker failed")
        failed = True
    framing.send(writer, (_END, failed))
    with contextlib.suppress(OSError):  # the other worker has disconnected
        await writer.drain()
