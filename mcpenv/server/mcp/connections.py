"""The open connections of handshake MCP clients: limited in number, and closed with their episode.

About half of the clients never close their connection, and some open one for every call. So an episode's connections
end with it. At the limit, a new connection closes the least recently used one of the same episode.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fastmcp.server.http import StarletteWithLifespan, StreamableHTTPASGIApp
from mcp.server.transport_security import RequestBodyLimitMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.http.body import with_few_parts

RESOURCE = "/"
"""The route in FastMCP's applications, and so the resource that OAuth's metadata (RFC 9728) names.

Clients accept only metadata whose resource is a prefix of their own URL: the server's root, for ``/mcp`` and every
episode."""

MAX_PER_HANDLE = 64
"""Maximum open connections at the address of one episode."""

MAX_PLAIN = 8192
"""Maximum open connections at ``/mcp``."""

MAX_FIRST_BYTES = 64 * 1024
"""Size of the request that opens a connection above which the client's information is shortened, because it is kept as
long as the connection."""

MAX_CLIENT_NAME = 200
"""Maximum characters of each text in the shortened information."""

MAX_BYTES_PER_HANDLE, MAX_PLAIN_BYTES = 512 * 1024, 16 * 1024 * 1024
"""Maximum size of all requests together that opened the connections at one episode's address, and at ``/mcp``."""


class _Connection:
    """The state of an open connection.

    Attributes:
        ended: set when it has ended; None if nothing waits for that.
        user: Starlette's user that opened it; no other may close it.
        size: of the request that opened it, in bytes.
        posts: requests in flight.
    """

    __slots__ = ("ended", "posts", "size", "user")

    def __init__(self, user: Any, size: int) -> None:
        self.ended: asyncio.Event | None = None
        self.user = user
        self.size = size
        self.posts = 0

    def end(self) -> None:
        """End its standing streams."""
        if self.ended is not None:
            self.ended.set()


_Connections = OrderedDict[str, _Connection]


class HandshakeConnections:
    """The open handshake connections of a server, by the episode at whose address they were opened.

    Args:
        app: FastMCP's application, which serves them.
    """

    def __init__(self, app: StarletteWithLifespan) -> None:
        self._transport = _transport_of(app)
        self._open: dict[str | None, _Connections] = {}
        self._bytes: dict[str | None, int] = {}
        self._where: dict[str, str] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def lift_limit(self) -> None:
        """Limit connections by this object alone; call it while the application runs.

        The session manager's own limit would refuse all clients once one of them has reached it.
        """
        assert self._transport.session_manager is not None
        self._transport.session_manager.max_sessions = None

    def opened(self, handle: str | None, connection: str, user: Any, size: int) -> None:
        """Register a connection that a client has opened. Close the least recently used ones above a limit.

        Args:
            handle: the handle of the episode; None at ``/mcp``.
            connection: its ``Mcp-Session-Id``.
            user: the authenticated user.
            size: of its first request, in bytes.
        """
        connections = self._open.setdefault(handle, OrderedDict())
        connections[connection] = _Connection(user, size)
        if handle is not None:
            self._where[connection] = handle
        most, most_bytes = (MAX_PLAIN, MAX_PLAIN_BYTES) if handle is None else (MAX_PER_HANDLE, MAX_BYTES_PER_HANDLE)
        self._bytes[handle] = self._bytes.get(handle, 0) + size
        while len(connections) > most or self._bytes[handle] > most_bytes:
            oldest = next((each for each, its in connections.items() if not its.posts), connection)
            self._where.pop(oldest, None)
            self._end_soon(oldest, self._removed(handle, oldest))

    def opened_at(self, connection: str) -> str | None:
        """Return the handle at whose address a connection was opened; None at ``/mcp``, or if it is unknown."""
        return self._where.get(connection)

    @contextmanager
    def using(self, connection: str) -> Iterator[None]:
        """Count a request of a connection as in flight."""
        connections = self._open.get(self.opened_at(connection), _Connections())
        if (its := connections.get(connection)) is None:
            yield
            return
        connections.move_to_end(connection)
        its.posts += 1
        try:
            yield
        finally:
            its.posts -= 1

    def ended(self, connection: str | None) -> asyncio.Event:
        """Return the event that is set when a connection has ended; one that is never set if it is unknown.

        A stream that begins while its connection ends is not closed by the transport.
        """
        ended = asyncio.Event()
        if (
            connection is None
            or (its := self._open.get(self.opened_at(connection), _Connections()).get(connection)) is None
        ):
            return ended
        its.ended = its.ended or ended
        return its.ended

    def closed(self, connection: str) -> None:
        """Forget a connection that its client has closed."""
        handle = self._where.pop(connection, None)
        if connection in self._open.get(handle, ()):
            self._removed(handle, connection).end()

    def end_all(self, handle: str) -> None:
        """Close the connections that were opened at a handle."""
        self._bytes.pop(handle, None)
        if (connections := self._open.pop(handle, None)) is not None:
            for connection, its in connections.items():
                self._where.pop(connection, None)
                self._end_soon(connection, its)

    def end(self, connection: str) -> None:
        """Close a connection at ``/mcp``, if it is open."""
        if connection in self._open.get(None, ()):
            self._end_soon(connection, self._removed(None, connection))

    def _removed(self, handle: str | None, connection: str) -> _Connection:
        its = self._open[handle].pop(connection)
        self._bytes[handle] -= its.size
        return its

    def _end_soon(self, connection: str, its: _Connection) -> None:
        task = asyncio.ensure_future(self._end(connection, its))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, connection: str, its: _Connection) -> None:
        """Close a connection as the client's own DELETE does."""
        scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": RESOURCE,
            "raw_path": RESOURCE.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"mcp-session-id", connection.encode("latin-1"))],
            "user": its.user,
        }
        await self._transport(scope, _nothing_more, _discard)
        its.end()


def limit_bodies(app: StarletteWithLifespan, max_body_bytes: int) -> None:
    """Make FastMCP's running application refuse larger requests with 413. Its own limit is 4 MiB, of any parts."""
    manager = _transport_of(app).session_manager
    assert manager is not None and isinstance(manager.asgi_app, RequestBodyLimitMiddleware)
    manager.asgi_app.max_body_size = max_body_bytes
    manager.asgi_app.app = partial(with_few_parts, manager.asgi_app.app, max_body_bytes)


def hide_tokens(app: StarletteWithLifespan) -> None:
    """Remove the token of an authenticated agent from requests to FastMCP's running application.

    A tool that passes on the headers of its request, as FastMCP's proxies do, would give the token to another server.
    It stays readable by FastMCP's ``get_access_token``.
    """
    manager = _transport_of(app).session_manager
    assert manager is not None and isinstance(manager.asgi_app, RequestBodyLimitMiddleware)
    manager.asgi_app.app = partial(_without_token, manager.asgi_app.app)


async def _without_token(inner: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    # In the same scope, which FastMCP's current request also reads.
    scope["headers"] = [each for each in scope["headers"] if each[0] != b"authorization"]
    await inner(scope, receive, send)


def _transport_of(app: StarletteWithLifespan) -> StreamableHTTPASGIApp:
    """Return the transport from inside its route, and inside the check of bearer tokens if there is one."""
    for route in app.routes:
        if isinstance(route, Route) and route.path == RESOURCE:
            endpoint: Any = route.endpoint
            endpoint = endpoint if isinstance(endpoint, StreamableHTTPASGIApp) else endpoint.app
            if isinstance(endpoint, StreamableHTTPASGIApp):
                return endpoint
    raise RuntimeError("FastMCP's application has no Streamable HTTP transport")


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(message: Message) -> None:
    """Drop a message of the answer."""
