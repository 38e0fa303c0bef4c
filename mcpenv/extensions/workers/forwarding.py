"""Forwarding: forward requests that belong to another worker, and serve all others here.

Authentication and other checks of a route run in the worker that serves the request. A request for a session that no
worker has is served here, where its route refuses it with ``SESSION_LOST``.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from pathlib import Path
from typing import Any

from fastmcp.server.auth import AuthProvider
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.config import ServerConfig
from mcpenv.server.control.http import refusal
from mcpenv.server.http.body import Replay, read_body
from mcpenv.server.sessions.capacity import RETRY_AFTER_S
from mcpenv_client.errors import CapacityReached, ExecutionError, SessionLost, WireError
from mcpenv_client.types.values import decode
from mcpenv_client.wire.protocol import encode_reply

from . import worker_id
from .framing import BadMessage
from .messages import Claim, FindSession, Location, Place, ReleaseId, WorkerTag
from .routing import SERVICE, SESSION_HEADER, Belonging, Kind, belonging, connection_tag
from .rpc import Channel
from .tunnel import Gone, Tunnels

logger = logging.getLogger("mcpenv")

MCP_PATHS = ("/mcp", "/mcp/")
RESTART_S = 30.0
"""Maximum seconds to wait for a worker that is being restarted."""


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
        self._tunnels: dict[str, Tunnels] = {}
        self._changed = asyncio.Event()

    def learn(self, tags: list[str]) -> None:
        """Update the running workers; close the tunnels to those that have ended."""
        self._tags = {worker_id.number_of(each): each for each in tags}
        for gone in self._tunnels.keys() - set(tags):
            self._tunnels.pop(gone).close()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def alive(self, worker: str) -> bool:
        """Return True if the worker with this tag runs."""
        return worker in self._tags.values()

    def to(self, worker: str) -> Tunnels:
        """Return the tunnels to a worker."""
        if worker not in self._tunnels:
            self._tunnels[worker] = Tunnels(self._folder / f"{worker}.sock")
        return self._tunnels[worker]

    async def responsible_for(self, name: str) -> str:
        """Return the tag of the worker that the name is hashed to, for a session or answer shared under that name.

        Raises:
            CapacityReached: the worker is not running and was not restarted in `RESTART_S` seconds.
        """
        return await self._at(zlib.crc32(name.encode()) % self._count)

    async def of_service(self) -> str:
        """Return the tag of the worker with the session that all anonymous stateless clients share.

        Raises:
            CapacityReached: as `responsible_for`.
        """
        return await self._at(0)

    def close(self) -> None:
        """Close the tunnels."""
        for tunnels in self._tunnels.values():
            tunnels.close()

    async def _at(self, number: int) -> str:
        try:
            async with asyncio.timeout(RESTART_S):
                while number not in self._tags:
                    await self._changed.wait()
        except TimeoutError as error:
            raise CapacityReached(
                "the worker of this server that has what was asked for is being started", retry_after_s=RETRY_AFTER_S
            ) from error
        return self._tags[number]


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
        self._carried = 0
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def local(self) -> ASGIApp:
        """The application for requests from other workers, which are not forwarded again."""
        return self._app

    async def idle(self) -> None:
        """Wait until no request is being forwarded."""
        await self._at_rest.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or forward one request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        belongs = belonging(scope.get("method", "GET"), scope["path"], scope.get("query_string", b""), scope["headers"])
        try:
            if belongs.kind is Kind.BODY:
                messages, body = await read_body(receive, self._max_body_bytes)
                receive = Replay(messages, receive)
                worker = await self._by_body(scope, body)
            elif belongs.kind is Kind.CHOSEN:
                await self._chosen(belongs.value, scope, receive, send)
                return
            else:
                worker = await self._worker_of(scope, belongs)
        except WireError as error:
            await _refuse(error, scope, receive, send)
            return
        await self._serve_at(worker, scope, receive, send)

    async def _serve_at(self, worker: str, scope: Scope, receive: Receive, send: Send) -> None:
        if worker == self._peers.own or not self._peers.alive(worker):
            await self._app(scope, receive, send)
            return
        watched = _Watched(send)
        self._carried += 1
        self._at_rest.clear()
        try:
            await self._peers.to(worker).carry(self._door, scope, receive, watched)
        except Gone as gone:
            if gone.began or watched.began:
                logger.warning("worker %s ended in the middle of an answer", worker)
            await watched.fail(SessionLost("the worker of this server that had it has ended"), scope, receive)
        except BadMessage as error:
            logger.error("a request could not be forwarded to worker %s: %s", worker, error)
            await watched.fail(ExecutionError("internal error between the server's workers"), scope, receive)
        finally:
            self._carried -= 1
            if self._carried == 0:
                self._at_rest.set()

    async def _chosen(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket whose client chose the session's id; the id is claimed while the socket is open."""
        worker = (await self._channel.call(Claim(session_id=session_id), WorkerTag)).tag
        try:
            await self._serve_at(worker, scope, receive, send)
        finally:
            if worker == self._peers.own:
                self._channel.tell(ReleaseId(session_id=session_id))

    async def _worker_of(self, scope: Scope, belongs: Belonging) -> str:
        """Return the tag of the worker that serves the request; this worker's if any can."""
        if scope["path"] in MCP_PATHS:
            return await self._of_mcp(scope, belongs)
        if belongs.kind is Kind.WORKER:
            return belongs.value
        if belongs.kind is Kind.PLACED:
            return await self._place()
        if belongs.kind is Kind.NAMED:
            found = await self._channel.call(FindSession(session_id=belongs.value), Location)
            return found.tag or self._peers.own
        return self._peers.own

    async def _of_mcp(self, scope: Scope, belongs: Belonging) -> str:
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
        return (await self._channel.call(Place(), WorkerTag)).tag


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
        self._over = kind == "websocket.close" or (kind == "http.response.body" and not message.get("more_body", False))
        await self._send(message)

    async def fail(self, error: WireError, scope: Scope, receive: Receive) -> None:
        """Send an error that ends the answer, if the answer's state still allows it."""
        if self._over:
            return
        if scope["type"] == "websocket":
            if not self.began:
                await _refuse(error, scope, receive, self._send)
            elif self._accepted:
                await self._close(error)
        elif not self.began:
            await refusal(error)(scope, receive, self._send)
        # An HTTP answer that has begun stays incomplete, and the HTTP server then closes the connection.

    async def _close(self, error: WireError) -> None:
        await self._send({"type": "websocket.send", "text": encode_reply("error", error.to_wire())})
        await self._send({"type": "websocket.close", "code": 1011, "reason": error.message})


async def _refuse(error: WireError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "websocket":
        await refusal(error)(scope, receive, send)
        return
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": encode_reply("error", error.to_wire())})
    await send({"type": "websocket.close", "code": 1011, "reason": error.message})


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
