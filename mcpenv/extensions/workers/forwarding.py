"""Forwarding: forward requests that belong to another worker, and serve all others here.

Authentication and other checks of a route run in the worker that serves the request. A request for a session that no
worker has is served here, where its route refuses it with ``SESSION_LOST``.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastmcp.server.auth import AuthProvider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.config import ServerConfig
from mcpenv.server.control.http import refusal
from mcpenv.server.http.body import Replay, read_body, too_large
from mcpenv.server.sessions.capacity import RETRY_AFTER_S
from mcpenv_client.errors import CapacityReached, SessionLost, WireError
from mcpenv_client.types.values import decode
from mcpenv_client.wire.protocol import encode_reply

from . import worker_id
from .channel import Channel
from .routing import SERVICE, SESSION_HEADER, Destination, Kind, connection_tag, destination
from .tunnel import Gone, carry

logger = logging.getLogger("mcpenv")

MCP_PATHS = ("/mcp", "/mcp/")
RESTART_S = 4.0
"""Maximum seconds to wait for a worker that is being restarted, or does not answer."""


class Peers:
    """The workers of a server, including this one.

    Args:
        folder: the folder of their sockets.
        count: number of workers of the server.

    Attributes:
        own: this worker's tag.
    """

    def __init__(self, folder: Path, own: str, count: int) -> None:
        self.own = own
        self._folder = folder
        self._count = count
        self._tags: dict[int, str] = {}
        self._silent: list[str] = []
        self._service: str | None = None
        self._changed = asyncio.Event()

    def learn(self, tags: list[str], silent: list[str], service: str | None) -> None:
        """Update the running workers.

        Args:
            silent: those that do not answer.
            service: the one with the session that all anonymous stateless clients share.
        """
        self._tags = {worker_id.number_of(each): each for each in tags}
        self._silent, self._service = silent, service
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def alive(self, worker: str) -> bool:
        """Return True if the worker with this tag runs."""
        return worker in self._tags.values()

    def socket_of(self, worker: str) -> Path:
        """Return the path of the Unix socket on which a worker serves requests that others forward."""
        return self._folder / f"{worker}.sock"

    async def responsible_for(self, name: str) -> str:
        """Return the tag of the worker that the name is hashed to, for a session or answer shared under that name.

        Raises:
            CapacityReached: the worker is not running, or does not answer, for `RESTART_S` seconds.
        """
        number = zlib.crc32(name.encode()) % self._count
        return await self._when(lambda: self._tags.get(number))

    async def of_service(self) -> str:
        """Return the tag of the worker with the session that all anonymous stateless clients share.

        Raises:
            CapacityReached: as `responsible_for`.
        """
        return await self._when(lambda: self._service)

    async def _when(self, chosen: Callable[[], str | None]) -> str:
        """Return the tag that a function returns, once it is that of a worker that answers."""
        try:
            async with asyncio.timeout(RESTART_S):
                while (tag := chosen()) is None or tag in self._silent:
                    await self._changed.wait()
                return tag
        except TimeoutError as error:
            raise CapacityReached(
                "the worker of this server that has what was asked for is being started, or does not answer",
                retry_after_s=RETRY_AFTER_S,
            ) from error


class Forwarding:
    """The ASGI application at one door (listening socket) of a worker.

    Args:
        door: the door's number.
        app: serves the requests that belong to this worker.
        auth: the authentication of agents. The sessions of authenticated agents are placed by their names.
    """

    def __init__(
        self, door: int, app: ASGIApp, peers: Peers, channel: Channel, config: ServerConfig, auth: AuthProvider | None
    ) -> None:
        self._door = door
        self._app = Tagged(app, peers.own)
        self._peers = peers
        self._channel = channel
        self._auth = auth
        self._per_connection = config.session_scope == "connection"
        self._max_body_bytes = config.max_message_bytes
        self._carrying: set[asyncio.Future[None]] = set()

    @property
    def local(self) -> ASGIApp:
        """The application for requests from other workers, which are not forwarded again."""
        return self._app

    async def idle(self) -> None:
        """Wait until no request is being forwarded."""
        while self._carrying:
            await asyncio.wait(self._carrying)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or forward one request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        belongs = destination(
            scope.get("method", "GET"), scope["path"], scope.get("query_string", b""), scope["headers"]
        )
        try:
            if belongs.kind is Kind.BODY:
                messages, body = await read_body(receive, self._max_body_bytes)
                receive = Replay(messages, receive)
                refused_here = too_large(body, self._max_body_bytes) is not None
                worker = self._peers.own if refused_here else await self._by_body(scope, body)
            elif belongs.kind is Kind.CHOSEN:
                await self._chosen(belongs.value, scope, receive, send)
                return
            else:
                worker = await self._worker_of(scope, belongs)
        except WireError as error:
            await _Watched(send).fail(error, scope, receive)
            return
        await self._serve_at(worker, scope, receive, send)

    async def _serve_at(self, worker: str, scope: Scope, receive: Receive, send: Send) -> None:
        if worker == self._peers.own or not self._peers.alive(worker):
            await self._app(scope, receive, send)
            return
        watched, done = _Watched(send), asyncio.get_running_loop().create_future()
        self._carrying.add(done)
        try:
            await carry(self._peers.socket_of(worker), self._door, scope, receive, watched)
        except Gone:
            if watched.began:
                logger.warning("worker %s ended in the middle of an answer", worker)
            await watched.fail(SessionLost("the worker of this server that had it has ended"), scope, receive)
        finally:
            self._carrying.discard(done)
            done.set_result(None)

    async def _chosen(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket whose client chose the session's id; the id is claimed while the socket is open."""
        worker = await self._channel.call("claim", session_id)
        try:
            await self._serve_at(worker, scope, receive, send)
        finally:
            if worker == self._peers.own:
                self._channel.tell("release_id", session_id)

    async def _worker_of(self, scope: Scope, belongs: Destination) -> str:
        """Return the tag of the worker that serves the request; this worker's if any can."""
        if scope["path"] in MCP_PATHS:
            return await self._of_mcp(scope, belongs)
        if belongs.kind is Kind.WORKER:
            return belongs.value
        if belongs.kind is Kind.PLACED:
            return await self._place()
        if belongs.kind is Kind.NAMED:
            found = await self._channel.call("others", "tag_of", belongs.value)
            return next((each for each in found if each is not None), self._peers.own)
        return self._peers.own

    async def _of_mcp(self, scope: Scope, belongs: Destination) -> str:
        """Return the tag of the worker for a request at ``/mcp``, by the order of `mcpenv.server.sessions.resolver`."""
        principal = await self._principal(scope)
        if principal is not None and not self._per_connection:
            return await self._peers.responsible_for(f"principal:{principal}")
        if belongs.kind is Kind.WORKER:
            return belongs.value
        if belongs == SERVICE:
            if principal is not None:
                return await self._peers.responsible_for(f"principal:{principal}")
            return await self._peers.of_service()
        return self._peers.own

    async def _principal(self, scope: Scope) -> str | None:
        """Return the principal of the request's token, for routing only; the serving worker authenticates it again."""
        if self._auth is None:
            return None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        found = await self._auth.verify_token(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            return None
        return getattr(found, "subject", None) or found.client_id

    async def _by_body(self, scope: Scope, body: bytes) -> str:
        """Return the tag of the worker for a request whose body has the session's id."""
        if scope["path"] in MCP_PATHS and b"initialize" in body:
            return self._peers.own
        session_id = _session_id_in(body) if b"session_id" in body else None
        if session_id is not None:
            worker, _ = worker_id.split(session_id)
            return worker or self._peers.own
        key = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        if key:
            # A retry must reach the worker that has the first answer.
            return await self._peers.responsible_for(f"{scope['path']} {key[0].decode('latin-1')}")
        return await self._place()

    async def _place(self) -> str:
        """Return the tag of the worker for a new session."""
        return str(await self._channel.call("place"))


class Tagged:
    """The middleware that adds this worker's tag to the ``Mcp-Session-Id`` of FastMCP, and removes it from requests.

    Args:
        own: this worker's tag.
    """

    def __init__(self, app: ASGIApp, own: str) -> None:
        self._app = app
        self._own = own
        self._prefix = own.encode() + b"."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not scope["path"].endswith(("/mcp", "/mcp/")):
            await self._app(scope, receive, send)
            return
        if connection_tag(scope["headers"]).value == self._own:
            scope = {**scope, "headers": [self._bare(name, value) for name, value in scope["headers"]]}

        async def tagging(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [self._tagged(name, value) for name, value in message["headers"]]}
            await send(message)

        await self._app(scope, receive, tagging)

    def _bare(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        return (name, value.strip().removeprefix(self._prefix)) if name == SESSION_HEADER else (name, value)

    def _tagged(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        return (name, self._prefix + value) if name.lower() == SESSION_HEADER else (name, value)


class _Watched:
    """The wrapper of ``send`` that tracks the progress of an answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began = False
        self._accepted = False
        self._over = False

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        self.began = True
        self._accepted = self._accepted or kind == "websocket.accept"
        self._over = kind == "websocket.close"
        await self._send(message)

    async def fail(self, error: WireError, scope: Scope, receive: Receive) -> None:
        """Send an error that ends the answer, if the answer's state still allows it.

        An HTTP answer that has begun stays incomplete, and the HTTP server then closes the connection.
        """
        if scope["type"] == "websocket":
            if not self.began:
                await self({"type": "websocket.accept"})
            if self._accepted and not self._over:
                await self._send({"type": "websocket.send", "text": encode_reply("error", error.to_wire())})
                await self._send({"type": "websocket.close", "code": 1011, "reason": error.message})
        elif not self.began:
            await refusal(error)(scope, receive, self._send)


def _session_id_in(body: bytes) -> str | None:
    """Return the ``session_id`` in a control plane request or in OpenEnv's JSON-RPC; None if there is none."""
    try:
        value: Any = decode(body)
    except ValueError:
        return None  # the serving worker refuses it
    if not isinstance(value, dict):
        return None
    if "jsonrpc" in value:
        value = value.get("params")
    session_id = value.get("session_id") if isinstance(value, dict) else None
    return session_id if isinstance(session_id, str) else None
