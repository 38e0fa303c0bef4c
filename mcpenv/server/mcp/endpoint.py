"""The endpoint ``/mcp``: FastMCP's own Streamable HTTP transport, with JSON answers if they lose nothing.

There are two transports of one server. One answers with JSON, and serves requests of the 2026-07-28 era except
subscriptions. Progress and log messages, which JSON answers would drop, go to a `LateStream`: the first message, or a
long silence, turns the answer into an event stream (MCP 2026-07-28, basic/transports). As there is no stream whose
close would show that the client has disconnected, a watcher detects it. The other transport answers with event streams,
and serves all other requests.

Another protocol may share the path: `SharedRoute` and `OtherOrMCP` tell MCP's requests from others by headers, or by
``initialize``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.http.body import Replay, read_body, too_large
from mcpenv.server.sessions.handles import Handle, Handles
from mcpenv.server.sessions.resolver import HANDLE
from mcpenv_client.types.values import decode

from .connections import MAX_CLIENT_NAME, MAX_FIRST_BYTES, RESOURCE, HandshakeConnections, hide_tokens, limit_bodies
from .event_store import RESUMED, RETRY_MS, RecentEvents, Resumption

WATCH_AFTER_S = 0.05
"""Seconds after which the endpoint watches a call for a disconnect. Faster calls need no watcher."""

STREAM: Final = "mcpenv.stream"
"""The key of the request's `LateStream` in the ASGI scope."""

PING_S = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy closes the connection as dead."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_BLANKS = (b" ", b"\t")
_NO_SESSION = b"0"
"""The value of the session header that no session has."""
_FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/form-data")
_MCP_HEADERS: Final = "Content-Type: application/json and Accept: application/json, text/event-stream"
_ACCEPT, _EVENTS = b"accept", b"text/event-stream"
_SUBSCRIBES = b'"subscriptions/listen"'


class MCPEndpoint:
    """The ASGI application at ``/mcp``.

    Args:
        handles: the episodes' addresses. The scope of a request to one contains the handle.
        on_session_end: called with the ``Mcp-Session-Id`` that a client has ended with DELETE.
        session_timeout_s: idle seconds after which a handshake session's transport ends; None: never.
        max_body_bytes: maximum size of a request.
    """

    def __init__(
        self,
        *,
        handles: Handles,
        on_session_end: Callable[[str], None],
        session_timeout_s: float | None,
        max_body_bytes: int,
    ) -> None:
        self._handles = handles
        self._on_session_end = on_session_end
        self._session_timeout_s = session_timeout_s
        self._max_body_bytes = max_body_bytes
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def running(self, server: FastMCP) -> AsyncIterator[None]:
        """Serve both transports.

        Args:
            server: the agent plane.
        """
        self._stopping = asyncio.Event()
        self._streaming = server.http_app(
            path=RESOURCE,
            event_store=RecentEvents(),
            retry_interval=RETRY_MS,
            session_idle_timeout=self._session_timeout_s,
        )
        self._plain = server.http_app(path=RESOURCE, json_response=True, session_idle_timeout=self._session_timeout_s)
        self._authenticates = server.auth is not None
        self._transports = HandshakeConnections(self._streaming)
        self._handles.on_forget = self._transports.end_all
        async with AsyncExitStack() as stack:
            for app in (self._streaming, self._plain):
                await stack.enter_async_context(app.lifespan(app))
                limit_bodies(app, self._max_body_bytes)
                if self._authenticates:
                    hide_tokens(app)
            self._transports.lift_limit()
            yield

    def end_connection(self, mcp_session_id: str) -> None:
        """Close the connection of a handshake client whose session has ended, so that the client begins a new one."""
        self._transports.end(mcp_session_id)

    def stop(self) -> None:
        """Close the standing streams for messages to clients. A server that shuts down would wait for them."""
        self._stopping.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        value = scope.get("path_params", {}).get("handle")
        handle: Handle | None = None
        # The two apps must not see the path at which this endpoint is mounted.
        scope = {**scope, "path": RESOURCE, "raw_path": RESOURCE.encode(), "root_path": ""}
        if value is not None:
            handle = self._handles.find(value)
            if handle is None:
                await self._no_such_episode(scope, receive, send)
                return
            scope[HANDLE] = handle
        if any(given[-1:] in _BLANKS for _, given in scope["headers"]):
            # RFC 9110, 5.5: blanks around a value are not part of it. httptools keeps those at the end.
            scope["headers"] = [(name, given.strip(b" \t")) for name, given in scope["headers"]]
        sessions = [given for name, given in scope["headers"] if name == _SESSION]
        versions = [given for name, given in scope["headers"] if name == _VERSION]
        if len(sessions) > 1 or len(versions) > 1:
            # Readers of the header do not agree on which of several values counts.
            body = {"message": "more than one Mcp-Session-Id or MCP-Protocol-Version", "code": "VALIDATION_ERROR"}
            await JSONResponse(body, 400)(scope, receive, send)
            return
        try:
            if scope["method"] == "POST" and versions and versions[0] in _MODERN:
                await self._modern(scope, receive, send)
            else:
                await self._handshake(scope, receive, send, value, sessions[0] if sessions else None)
        except ClientDisconnect:
            return  # The client disconnected in the middle of its request.

    async def _handshake(
        self, scope: Scope, receive: Receive, send: Send, handle: str | None, session_id: bytes | None
    ) -> None:
        """Serve a request of the handshake era, and register the connections that it opens or closes."""
        connection = None if session_id is None else session_id.decode("latin-1")
        if connection is not None and self._transports.opened_at(connection) != handle:
            # It is valid only at the address where it was opened. Elsewhere the transport answers that there is none.
            await self._streaming(_with_session(scope, _NO_SESSION), receive, send)
            return
        if connection is not None and scope["method"] == "POST":
            with self._transports.using(connection):
                await self._streaming(scope, receive, send)
            return
        if scope["method"] == "GET":
            await self._standing(scope, receive, send, connection)
            return
        if connection is not None and scope["method"] != "DELETE":
            await self._streaming(scope, receive, send)
            return

        size = 0
        if connection is None and scope["method"] == "POST":
            messages, body = await read_body(receive, self._max_body_bytes)
            if len(body) > MAX_FIRST_BYTES and too_large(body, self._max_body_bytes) is None:
                scope, body = _with_body(scope, _shortened(body))
                messages = [{"type": "http.request", "body": body}]
            size = len(body)
            receive = Replay(messages, receive)

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                if connection is not None:
                    self._transports.closed(connection)
                    self._on_session_end(connection)
                elif (opened := dict(message["headers"]).get(_SESSION)) is not None:
                    self._transports.opened(handle, opened.decode("latin-1"), scope.get("user"), size)
            await send(message)

        await self._streaming(scope, receive, note)

    async def _no_such_episode(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 404. A client without a required token gets 401 instead, and learns nothing about the episode."""
        refused = False

        async def refusals(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                refused = message["status"] in (401, 403)
            if refused:
                await send(message)

        if self._authenticates:
            # A DELETE of a session that does not exist: its answer depends only on the request's credential.
            await self._streaming({**_with_session(scope, _NO_SESSION), "method": "DELETE"}, receive, refusals)
        if not refused:
            await JSONResponse({"message": "no such episode", "code": "SESSION_LOST"}, 404)(scope, receive, send)

    async def _modern(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the 2026-07-28 era. If its client disconnects during a slow call, cancel the call."""
        stream: LateStream | None = None
        if any(_EVENTS in given for name, given in scope["headers"] if name == _ACCEPT):
            stream = LateStream(send)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
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

        messages, body = await read_body(receive, self._max_body_bytes)
        replayed = Replay(messages, receive)
        if _SUBSCRIBES in body:
            del messages, body  # the stream stays, perhaps for hours
            await self._streaming(scope, replayed, send)
            return
        timers = [loop.call_later(WATCH_AFTER_S, begin, watch)]
        if stream is not None:
            scope[STREAM] = stream
            timers.append(loop.call_later(PING_S, begin, stream.keep_alive))
        try:
            await self._plain(scope, replayed, send if stream is None else stream)
        except asyncio.CancelledError:
            if not left or task.uncancel() > 0:
                raise
        finally:
            for timer in timers:
                timer.cancel()
            for watcher in watchers:
                watcher.cancel()

    async def _standing(self, scope: Scope, receive: Receive, send: Send, connection: str | None) -> None:
        """Serve a standing stream until its client disconnects, its connection ends or the server shuts down.

        A stream that was resumed also ends with the answer of its request.
        """
        resumption = Resumption()
        RESUMED.set(resumption)
        ends = (self._stopping, self._transports.ended(connection), resumption.answered)
        ending = [asyncio.ensure_future(each.wait()) for each in ends]
        open_ended = False

        async def receive_or_stop() -> Message:
            receiving = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({receiving, *ending}, return_when=asyncio.FIRST_COMPLETED)
                return receiving.result() if receiving.done() else {"type": "http.disconnect"}
            finally:
                receiving.cancel()

        async def watch_end(message: Message) -> None:
            nonlocal open_ended
            open_ended = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)
            resumption.sent(message.get("body", b""))

        try:
            await self._streaming(scope, receive_or_stop, watch_end)
            if open_ended and any(each.is_set() for each in ends):
                await send({"type": "http.response.body", "body": b""})
        finally:
            for each in ending:
                each.cancel()
            resumption.end()


def _shortened(body: bytes) -> bytes:
    """Return a large ``initialize`` request with only as much of its client's information as is kept."""
    try:
        message = decode(body)
        if message["method"] != "initialize":
            return body
        params = message["params"]
        info = {name: text[:MAX_CLIENT_NAME] for name, text in params["clientInfo"].items() if type(text) is str}
        capabilities = params["capabilities"]
        if len(to_json(capabilities)) > MAX_FIRST_BYTES // 2:
            capabilities = {name: {} for name in ("elicitation", "roots", "sampling") if name in capabilities}
        short = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "clientInfo": info}
        return to_json({**message, "params": short})
    except (ValueError, TypeError, LookupError, AttributeError):
        return body  # for the transport to refuse


def _with_body(scope: Scope, body: bytes) -> tuple[Scope, bytes]:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, body


def _with_session(scope: Scope, session_id: bytes) -> Scope:
    """Return the request with another session id."""
    headers = [(name, value) for name, value in scope["headers"] if name != _SESSION]
    return {**scope, "headers": [*headers, (_SESSION, session_id)]}


class LateStream:
    """The ASGI ``send`` of one request whose client takes an event stream as well as JSON.

    Most calls send no progress and no logs, and plain JSON costs a third less.

    The transport sends its JSON answer by calling this object. Messages of the call before the answer use `send`.
    """

    __slots__ = ("_begun", "_ended", "_lock", "_send", "_written")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._ended = False
        self._written = False
        self._lock = asyncio.Lock()  # pings and the call must not send at once

    async def __call__(self, message: Message) -> None:
        """Send a part of the transport's answer."""
        if not self._begun:
            self._ended = True
            await self._send(message)
        elif message["type"] == "http.response.body":
            async with self._lock:
                self._ended = True
                event = b"event: message\r\ndata: %b\r\n\r\n" % message.get("body", b"")
                await self._send({"type": "http.response.body", "body": event})

    async def send(self, event: bytes) -> None:
        """Send an event before the answer; drop it after the answer."""
        self._written = True
        async with self._lock:
            if self._ended:
                return
            if not self._begun:
                self._begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def keep_alive(self) -> None:
        """Send a comment after each silence of `PING_S`, until cancelled."""
        while True:
            if not self._written:
                await self.send(b": ping\r\n\r\n")
            self._written = False
            await asyncio.sleep(PING_S)


async def lend_stream(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Send a request's messages to its `LateStream`, if it has one: middleware of the low-level server."""
    request: Any = ctx.request
    stream = None if request is None else request.scope.get(STREAM)
    if stream is not None:
        outbound: Any = ctx.session._request_outbound
        outbound.sink = stream
    return await call_next(ctx)


class SharedRoute(Route):
    """The route that does not match a request with MCP's headers."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as `Route` does, except requests of MCP clients."""
        match, child_scope = super().matches(scope)
        return (Match.NONE, {}) if match is Match.FULL and _speaks_mcp(scope) else (match, child_scope)


class OtherOrMCP:
    """The ASGI application for requests without MCP's headers: ``initialize`` is MCP, all others are not.

    Args:
        max_body_bytes: maximum size of a body that is searched for ``initialize``; a larger one is for MCP to refuse.
        admitted: says if the client of a request may use the other protocol. One that may not, and sends a form, is
            told what MCP takes.
    """

    def __init__(
        self, other: ASGIApp, mcp: ASGIApp, max_body_bytes: int, admitted: Callable[[Scope], bool] = lambda _: True
    ) -> None:
        self._other = other
        self._admitted = admitted
        self._mcp = mcp
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        types = [value.lower() for name, value in scope["headers"] if name == b"content-type"]
        if any(each.startswith(_FORMS) for each in types) and not self._admitted(scope):
            refused = {"message": f"a form is no request of MCP; send {_MCP_HEADERS}", "code": "VALIDATION_ERROR"}
            await JSONResponse(refused, 415)(scope, receive, send)
            return
        messages, body = await read_body(receive, self._max_body_bytes)
        is_mcp = too_large(body, self._max_body_bytes) is not None or _initializes(body)
        await (self._mcp if is_mcp else self._other)(scope, Replay(messages, receive), send)


def _speaks_mcp(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name in (b"mcp-session-id", b"mcp-protocol-version"):
            return True
        if name == b"accept" and b"text/event-stream" in value.lower():
            return True
    return False


def _initializes(body: bytes) -> bool:
    """Return True if an MCP client begins with this body; MCP also answers one with a wrong ``Accept``."""
    if b"initialize" not in body:
        return False
    try:
        message = decode(body)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"
