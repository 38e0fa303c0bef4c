"""Tunnels: carry a request to the worker to which it belongs, as ASGI events over a Unix socket.

A tunnel carries one request: an HTTP exchange, or a WebSocket until it closes. Both ends apply backpressure. For the
application, a broken tunnel is a client that disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .channel import FrameReader, frame

logger = logging.getLogger("mcpenv")

BACKLOG = 4096
"""Tunnels that a worker has not accepted yet. Further ones fail at once."""

KEYS = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path"),
    *("headers", "client", "server", "subprotocols"),
)
"""The keys of a scope that are carried. The others are objects of their process."""

EXTENSIONS = frozenset({"websocket.http.response", "mcpenv.websocket.used"})
"""The ASGI extensions that applications are offered."""

DISCONNECTS = ("http.disconnect", "websocket.disconnect")


class Gone(Exception):
    """The worker has disconnected."""


async def carry(path: Path, door: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the worker that listens at a Unix socket serve a request.

    Args:
        door: the number of the listening socket that accepted the request.

    Raises:
        Gone: the worker is not there, or disconnected during the request.
        RuntimeError: its application failed.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise Gone from error
    asking = asyncio.ensure_future(_carry_events(receive, writer))
    answering = asyncio.ensure_future(_carry_answer(FrameReader(reader), send))
    try:
        carried = {name: value for name, value in scope.items() if name in KEYS}
        carried["extensions"] = {name: {} for name in EXTENSIONS.intersection(scope.get("extensions") or ())}
        writer.write(frame([door, carried]))
        await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            asking.result()  # raises if an event could not be carried
        await answering
    finally:
        asking.cancel()
        answering.cancel()
        await asyncio.wait({asking, answering})
        writer.close()


async def _carry_events(receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Send the client's events to the worker until the client disconnects."""
    with contextlib.suppress(OSError):  # the worker has disconnected: `_carry_answer` raises `Gone`
        while True:
            event = await receive()
            writer.write(frame(event))
            if event["type"] in DISCONNECTS:
                return
            await writer.drain()


async def _carry_answer(frames: FrameReader, send: Send) -> None:
    while True:
        try:
            event = await frames.next()
        except EOFError as error:
            raise Gone from error
        if event["type"] == "returned":
            if event["failed"]:
                raise RuntimeError("the worker to which a request belongs failed to answer it")  # see its log
            return
        await send(_with_tuples(event))


class TunnelServer:
    """The far end of tunnels, which serves their requests.

    Args:
        applications: the applications of the server's doors, by number.
    """

    def __init__(self, applications: Sequence[ASGIApp]) -> None:
        self._applications = applications
        self._requests: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, path: Path) -> AsyncIterator[None]:
        """Listen while the block runs; then cancel the requests that are still running."""
        server = await asyncio.start_unix_server(self._begin, path, backlog=BACKLOG)
        try:
            yield
        finally:
            server.close()
            for task in self._requests:
                task.cancel()
            await self.idle()

    async def idle(self) -> None:
        """Wait until no request is being served."""
        while self._requests:
            await asyncio.wait(self._requests)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(FrameReader(reader), writer))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _serve(self, frames: FrameReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(EOFError, OSError):  # the other worker has disconnected
                door, scope = await frames.next()
                exchange = _Exchange(scope["type"], frames, writer)
                failed = await _failed(self._applications[door], _with_tuples(scope), exchange)
                writer.write(frame({"type": "returned", "failed": failed}))
                writer.close()
                await writer.wait_closed()
        finally:
            writer.close()


class _Exchange:
    """The ASGI callables of one request at the far end."""

    def __init__(self, kind: str, frames: FrameReader, writer: asyncio.StreamWriter) -> None:
        self._frames = frames
        self._writer = writer
        self._disconnect: Message = {"type": "http.disconnect"}
        if kind == "websocket":
            self._disconnect = {"type": "websocket.disconnect", "code": 1006, "reason": ""}
        self._left = False

    @property
    def broken(self) -> bool:
        """True once the other worker has disconnected."""
        return self._writer.is_closing()

    async def receive(self) -> Message:
        """Return the client's next event; the disconnect event once the client or the tunnel has disconnected."""
        event: Message = self._disconnect
        if not self._left:
            with contextlib.suppress(EOFError):
                event = await self._frames.next()
        self._left = event["type"] in DISCONNECTS
        return event

    async def send(self, event: Message) -> None:
        """Send an event to the client.

        Raises:
            OSError: the other worker has disconnected.
            TypeError: the event has a value without a JSON form.
        """
        if self.broken:
            raise OSError("the worker that forwarded the request has disconnected")
        self._writer.write(frame(event))
        await self._writer.drain()


async def _failed(app: ASGIApp, scope: Scope, exchange: _Exchange) -> bool:
    """Serve a request; return True if the application failed."""
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception:  # the boundary of a request, as in an HTTP server
        if not exchange.broken:
            logger.exception("a request that came from another worker failed")
        return True
    return False


def _with_tuples(value: dict[str, Any]) -> dict[str, Any]:
    """Return a scope or an event with its addresses and the pairs of its headers as tuples, which JSON has not."""
    value.update({name: tuple(value[name]) for name in ("client", "server") if value.get(name) is not None})
    if value.get("headers") is not None:
        value["headers"] = [tuple(pair) for pair in value["headers"]]
    return value
