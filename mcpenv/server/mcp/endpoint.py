"""``/mcp``: FastMCP's own Streamable HTTP transport, with JSON answers where nothing is lost by them.

There are two transports of one server. A request of the 2026-07-28 era takes the one that answers with JSON, unless it
is a subscription: what JSON replies would drop, progress and log messages, goes to a `LateStream`, and a watch for the
client's leaving stands in for the stream that closes. All others take the one that answers with event streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastmcp import FastMCP
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.http.body import Replay, read_body
from mcpenv.server.sessions.handles import Handle, Handles
from mcpenv.server.sessions.resolver import HANDLE

from .connections import RESOURCE, Transports, limit_bodies
from .event_store import RETRY_MS, RecentEvents
from .event_stream import PING_S, STREAM, LateStream

WATCH_AFTER_S = 0.05
"""A call that takes longer is watched for its client's leaving; quick calls pay nothing for it."""

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_BLANKS = (b" ", b"\t")
_NO_SESSION = b"0"
"""A value of the header that no session has."""
_ACCEPT, _EVENTS = b"accept", b"text/event-stream"
_SUBSCRIBES = b'"subscriptions/listen"'


class MCPEndpoint:
    """The ASGI application at ``/mcp``.

    Args:
        server: the agent plane.
        handles: the episodes' addresses; a request by one carries it in its scope.
        on_session_end: told the ``Mcp-Session-Id`` that a client has ended with DELETE.
        session_timeout_s: idle seconds after which a handshake session's transport ends.
        max_body_bytes: the largest request.
    """

    def __init__(
        self,
        server: FastMCP,
        *,
        handles: Handles,
        on_session_end: Callable[[str], None],
        session_timeout_s: float,
        max_body_bytes: int,
    ) -> None:
        self._streaming = server.http_app(
            path=RESOURCE,
            event_store=RecentEvents(),
            retry_interval=RETRY_MS,
            session_idle_timeout=session_timeout_s,
        )
        self._plain = server.http_app(path=RESOURCE, json_response=True, session_idle_timeout=session_timeout_s)
        self._authenticates = server.auth is not None
        self._handles = handles
        self._transports = Transports(self._streaming)
        handles.on_forget = self._transports.end_all
        self._on_session_end = on_session_end
        self._max_body_bytes = max_body_bytes
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve both transports."""
        self._stopping = asyncio.Event()
        async with AsyncExitStack() as stack:
            for app in (self._streaming, self._plain):
                await stack.enter_async_context(app.lifespan(app))
                limit_bodies(app, self._max_body_bytes)
            self._transports.lift_limit()
            yield

    def end_connection(self, mcp_session_id: str) -> None:
        """A handshake client's session has ended: so does its connection, which tells the client to begin anew."""
        self._transports.end(mcp_session_id)

    def stop(self) -> None:
        """End the streams that stand open for messages to clients; a server that ends would wait for them."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        value = scope.get("path_params", {}).get("handle")
        handle: Handle | None = None
        # Where this endpoint itself is mounted is no concern of the two apps.
        scope = {**scope, "path": RESOURCE, "raw_path": RESOURCE.encode(), "root_path": ""}
        if value is not None:
            handle = self._handles.find(value)
            if handle is None:
                await self._no_such_episode(scope, receive, send)
                return
            scope[HANDLE] = handle
        if any(given[-1:] in _BLANKS for _, given in scope["headers"]):
            # RFC 9110, 5.5: blanks around a value are none of it. httptools leaves those at the end.
            scope["headers"] = [(name, given.strip(b" \t")) for name, given in scope["headers"]]
        sessions = [given for name, given in scope["headers"] if name == _SESSION]
        versions = [given for name, given in scope["headers"] if name == _VERSION]
        if len(sessions) > 1 or len(versions) > 1:
            # Which of them counts is not agreed on between those who read them.
            body = {"message": "more than one Mcp-Session-Id or MCP-Protocol-Version", "code": "VALIDATION_ERROR"}
            await JSONResponse(body, 400)(scope, receive, send)
            return
        try:
            if scope["method"] == "POST" and versions and versions[0] in _MODERN:
                await self._modern(scope, receive, send)
            else:
                await self._handshake(scope, receive, send, value, sessions[0] if sessions else None)
        except ClientDisconnect:
            return  # in the middle of its request: there is nobody to answer

    async def _handshake(
        self, scope: Scope, receive: Receive, send: Send, handle: str | None, session_id: bytes | None
    ) -> None:
        """A request of the handshake era; connections that it opens or ends are noted."""
        connection = None if session_id is None else session_id.decode("latin-1")
        if connection is not None and self._transports.opened_at(connection) != handle:
            # It is of use only where it was opened; elsewhere the transport says in its own words that there is none.
            await self._streaming(_with_session(scope, _NO_SESSION), receive, send)
            return
        if connection is not None and scope["method"] == "POST":
            with self._transports.using(connection):
                await self._streaming(scope, receive, send)
            return
        if scope["method"] == "GET":
            await self._standing(scope, receive, send)
            return
        if connection is not None and scope["method"] != "DELETE":
            await self._streaming(scope, receive, send)
            return

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                if connection is not None:
                    self._transports.closed(connection)
                    self._on_session_end(connection)
                elif (opened := dict(message["headers"]).get(_SESSION)) is not None:
                    self._transports.opened(handle, opened.decode("latin-1"), scope.get("user"))
            await send(message)

        await self._streaming(scope, receive, note)

    async def _no_such_episode(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404; but whoever needs a token and has none is told that and nothing about the episode."""
        refused = False

        async def refusals(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                refused = message["status"] in (401, 403)
            if refused:
                await send(message)

        if self._authenticates:
            # The end of a session that nobody has: what comes of it is what comes of the request's credential.
            await self._streaming({**_with_session(scope, _NO_SESSION), "method": "DELETE"}, receive, refusals)
        if not refused:
            await JSONResponse({"message": "no such episode", "code": "SESSION_LOST"}, 404)(scope, receive, send)

    async def _modern(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages, body = await read_body(receive, self._max_body_bytes)
        replayed = Replay(messages, receive)
        if _SUBSCRIBES in body:
            await self._streaming(scope, replayed, send)
            return
        stream: LateStream | None = None
        if any(_EVENTS in given for name, given in scope["headers"] if name == _ACCEPT):
            stream = scope[STREAM] = LateStream(send)
        await _watched(self._plain, scope, replayed, receive, send if stream is None else stream, stream)

    async def _standing(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a stream that is open until its client leaves or the server ends."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        open_ended = False

        async def receive_or_stop() -> Message:
            receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                return receiving.result() if receiving.done() else {"type": "http.disconnect"}
            finally:
                receiving.cancel()

        async def watch_end(message: Message) -> None:
            nonlocal open_ended
            open_ended = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        try:
            await self._streaming(scope, receive_or_stop, watch_end)
            if open_ended and stopping.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            stopping.cancel()


def _with_session(scope: Scope, session_id: bytes) -> Scope:
    """The request as if it were of another session."""
    headers = [(name, value) for name, value in scope["headers"] if name != _SESSION]
    return {**scope, "headers": [*headers, (_SESSION, session_id)]}


async def _watched(
    app: ASGIApp, scope: Scope, replayed: Receive, receive: Receive, send: Send, stream: LateStream | None
) -> None:
    """Serve a request; if its client leaves while a slow call is under way, cancel the call."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    watchers: list[asyncio.Task[None]] = []
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        task.cancel()

    def begin(watching: Callable[[], Coroutine[Any, Any, None]]) -> None:
        watchers.append(loop.create_task(watching()))

    timers = [loop.call_later(WATCH_AFTER_S, begin, watch)]
    if stream is not None:
        timers.append(loop.call_later(PING_S, begin, stream.keep_alive))
    try:
        await app(scope, replayed, send)
    except asyncio.CancelledError:
        if not left or task.uncancel() > 0:
            raise
    finally:
        for timer in timers:
            timer.cancel()
        for watcher in watchers:
            watcher.cancel()
