"""Connections of the handshake era: answers are sent at once and whole, until there is something to say before.

The transport of `mcp` answers with event streams, for which four tasks and five queues stand between a call and its
socket, or with JSON, in which nothing but the answer can be said. Here the answer is a stream of one event, written
when it is known, unless the call says something on its way, asks its client something, closes its stream, or takes so
long that its client could want to come back for the answer. Then it has the stream that `mcp` makes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

import anyio
import pydantic_core
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.streamable_http import (
    CONTENT_TYPE_SSE,
    GET_STREAM_KEY,
    MCP_SESSION_ID_HEADER,
    REQUEST_STREAM_BUFFER_SIZE,
    EventMessage,
    SSEEvent,
    StreamableHTTPServerTransport,
    check_accept_headers,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    DEFAULT_NEGOTIATED_VERSION,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

STREAM_AFTER_S = 0.05
"""A call that takes longer has a stream: its client can come back for the answer, and is noticed when it leaves."""

_OPENING: Final = "initialize"


class _Inbox:
    """Messages of a client on their way to what answers them: both ends of a stream.

    Attributes:
        last_context: the context in which the last received message was sent.
    """

    def __init__(self) -> None:
        self._messages: deque[tuple[contextvars.Context, SessionMessage | Exception]] = deque()
        self._receiver: asyncio.Future[None] | None = None
        self._closed = False
        self.last_context: contextvars.Context | None = None

    async def send(self, item: SessionMessage | Exception) -> None:
        """Have it received.

        Raises:
            anyio.ClosedResourceError: nobody receives any more.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        self._messages.append((contextvars.copy_context(), item))
        self._wake()

    async def receive(self) -> SessionMessage | Exception:
        """The next message; one at a time may wait for it.

        Raises:
            anyio.EndOfStream: the stream was closed.
        """
        while not self._messages and not self._closed:
            self._receiver = asyncio.get_running_loop().create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        if self._closed:
            raise anyio.EndOfStream
        self.last_context, item = self._messages.popleft()
        return item

    def close(self) -> None:
        """End it: who waits is told, and what nobody received is dropped."""
        self._closed = True
        self._messages.clear()
        self._wake()

    async def aclose(self) -> None:
        """The same."""
        self.close()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def __aiter__(self) -> _Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> _Inbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Outbox:
    """Messages to a client: they go where they belong at once, in the task of who says them."""

    def __init__(self, deliver: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._deliver: Callable[[SessionMessage], Awaitable[None]] | None = deliver

    async def send(self, item: SessionMessage) -> None:
        """Deliver it.

        Raises:
            anyio.ClosedResourceError: the connection has ended.
        """
        if self._deliver is None:
            raise anyio.ClosedResourceError
        await self._deliver(item)

    def close(self) -> None:
        """Deliver no more."""
        self._deliver = None

    async def aclose(self) -> None:
        """The same."""
        self.close()

    async def __aenter__(self) -> _Outbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Stream:
    """An event stream on its way to a client, by `mcp`'s means.

    Attributes:
        ends: where the transport puts what belongs to the request, and takes it from.
        writer: what it writes that to.
    """

    __slots__ = ("_reader", "_response", "ends", "writer")

    def __init__(self, headers: dict[str, str], run: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> None:
        self.ends = anyio.create_memory_object_stream[EventMessage](REQUEST_STREAM_BUFFER_SIZE)
        self.writer, self._reader = anyio.create_memory_object_stream[SSEEvent](0)
        sender = partial(run, self.writer, self.ends[1])
        self._response = EventSourceResponse(content=self._reader, data_sender_callable=sender, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as long as there is something to come and somebody to hear it."""
        try:
            await self._response(scope, receive, send)
        finally:
            self._reader.close()

    def drop(self) -> None:
        """It was never sent."""
        for end in (*self.ends, self.writer, self._reader):
            end.close()


_Outcome = JSONRPCResponse | JSONRPCError | _Stream


class _Exchange:
    """A request that was not answered yet, nor has a stream.

    Attributes:
        request_id: as the transport knows it.
        version: of the protocol, by its client's word.
        outcome: its answer, or the stream in which that will be.
    """

    __slots__ = ("_id", "outcome", "request_id", "version")

    def __init__(self, request_id: RequestId, version: str) -> None:
        self._id = request_id
        self.request_id = str(request_id)
        self.version = version
        self.outcome: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()

    @property
    def is_settled(self) -> bool:
        """Whether it is known how it is answered, or nobody waits for that any more."""
        return self.outcome.done()

    def settle(self, outcome: _Outcome) -> None:
        """Say how it is answered, unless that is known."""
        if not self.is_settled:
            self.outcome.set_result(outcome)

    def end(self) -> None:
        """Its connection ends before it is answered.

        It is answered all the same, and not by a status, which clients that are leaving take for a failure of theirs.
        """
        error = ErrorData(code=CONNECTION_CLOSED, message="the session ended before this was answered")
        self.settle(JSONRPCError(jsonrpc="2.0", id=self._id, error=error))


class HandshakeTransport(StreamableHTTPServerTransport):
    """The transport of one connection of the handshake era."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._exchanges: dict[str, _Exchange] = {}
        self._beginning: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[Any, Any]]:
        """The streams of requests to be answered, and of what is said to the client, while the connection lives."""
        if self._idle_timeout is not None:
            self.idle_scope = anyio.CancelScope()
        inbox, outbox = _Inbox(), _Outbox(self._deliver)
        mine: Any = self  # for `mcp`, they are its own classes of streams
        mine._read_stream_writer = mine._read_stream = inbox
        mine._write_stream = outbox
        try:
            yield inbox, outbox
        finally:
            self._end_all()
            inbox.close()
            outbox.close()
            for key in list(self._request_streams):
                await self._clean_up_memory_streams(key)

    async def terminate(self) -> None:
        """End the connection, and what is asked on it."""
        self._end_all()
        await super().terminate()

    def _end_all(self) -> None:
        for exchange in self._exchanges.values():
            exchange.end()

    async def _handle_post_request(self, scope: Scope, request: Request, receive: Receive, send: Send) -> None:
        message = await self._as_one_request(request)
        if message is None:
            await super()._handle_post_request(scope, request, receive, send)
            return
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        if message.method == _OPENING and message.params:
            version = str(message.params.get("protocolVersion", DEFAULT_NEGOTIATED_VERSION))
        outcome = await self._asked(message, request, _Exchange(message.id, version))
        if isinstance(outcome, _Stream):
            await outcome(scope, receive, send)
        else:
            answer = outcome.model_dump_json(by_alias=True, exclude_unset=True)
            await Response(f"event: message\r\ndata: {answer}\r\n\r\n", headers=self._headers())(scope, receive, send)

    async def _asked(self, message: JSONRPCRequest, request: Request, exchange: _Exchange) -> _Outcome:
        """Have a request answered; gives how."""
        self._exchanges[exchange.request_id] = exchange
        timer = asyncio.get_running_loop().call_later(STREAM_AFTER_S, self._begin_soon, exchange)
        try:
            assert self._read_stream_writer is not None
            try:
                await self._read_stream_writer.send(self._with_metadata(message, request, exchange))
            except anyio.ClosedResourceError:
                exchange.end()
            return await exchange.outcome
        except BaseException:
            if exchange.is_settled and not exchange.outcome.cancelled():
                stream = exchange.outcome.result()
                if isinstance(stream, _Stream):  # in this very turn of the loop
                    stream.drop()
            raise
        finally:
            timer.cancel()
            if self._exchanges.get(exchange.request_id) is exchange:
                del self._exchanges[exchange.request_id]

    async def _as_one_request(self, request: Request) -> JSONRPCRequest | None:
        """What is asked, if it is one request in order.

        All else is left to `mcp`'s own transport: to refuse, to take (notifications and answers), or, if the id is that
        of a request under way, to serve as it does.
        """
        if check_accept_headers(request) != (True, True) or not self._check_content_type(request):
            return None
        try:
            message = jsonrpc_message_adapter.validate_python(
                pydantic_core.from_json(await request.body()), by_name=False
            )
        except ValueError:  # of pydantic's errors, too
            return None
        if not isinstance(message, JSONRPCRequest):
            return None
        if str(message.id) in self._request_streams or str(message.id) in self._exchanges:
            return None
        if message.method != _OPENING and self._get_session_id(request) != self.mcp_session_id:
            return None
        return message

    def _with_metadata(self, message: JSONRPCRequest, request: Request, exchange: _Exchange) -> SessionMessage:
        asked = self._create_session_message(message, request, exchange.request_id, exchange.version)
        assert isinstance(asked.metadata, ServerMessageMetadata)
        if asked.metadata.close_sse_stream is not None:
            asked.metadata.close_sse_stream = partial(self._hang_up, exchange)
        return asked

    def _headers(self) -> dict[str, str]:
        return {
            "Cache-Control": "no-cache, no-transform",
            "Content-Type": CONTENT_TYPE_SSE,
            MCP_SESSION_ID_HEADER: self.mcp_session_id or "",
        }

    async def _deliver(self, item: SessionMessage) -> None:
        """A message to the client goes to the request that it belongs to, or to the stream that is open for others."""
        message = item.message
        key = GET_STREAM_KEY
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            if message.id is not None:
                key = str(message.id)
        elif isinstance(item.metadata, ServerMessageMetadata) and item.metadata.related_request_id is not None:
            key = str(item.metadata.related_request_id)
        exchange = self._exchanges.get(key)
        if exchange is not None and not exchange.is_settled:
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                exchange.settle(message)
                return
            await self._begin_stream(exchange)
        event_id = None if self._event_store is None else await self._event_store.store_event(key, message)
        streams = self._request_streams.get(key)
        if streams is not None:
            try:
                await streams[0].send(EventMessage(message, event_id))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._request_streams.pop(key, None)

    async def _hang_up(self, exchange: _Exchange) -> None:
        """End the stream of a request, whose client will come back for the answer: what was said is sent before."""
        await self._begin_stream(exchange)  # if it has none: by that its client knows what to come back to
        streams = self._request_streams.pop(exchange.request_id, None)
        if streams is not None:
            streams[0].close()

    def _begin_soon(self, exchange: _Exchange) -> None:
        beginning = asyncio.ensure_future(self._begin_stream(exchange))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)

    async def _begin_stream(self, exchange: _Exchange) -> None:
        """Give a request a stream, unless it has one, or is answered, or another of the same id has one."""
        if exchange.is_settled or exchange.request_id in self._request_streams:
            return
        priming = await self._mint_priming_event(exchange.request_id, exchange.version)
        if exchange.is_settled:
            return

        def run(writer: Any, events: Any) -> Coroutine[Any, Any, None]:
            return self._run_sse_writer(exchange.request_id, writer, events, priming)

        stream = _Stream(self._headers(), run)
        self._request_streams[exchange.request_id] = stream.ends
        self._sse_stream_writers[exchange.request_id] = stream.writer
        exchange.settle(stream)


def answer_at_once(manager: StreamableHTTPSessionManager) -> None:
    """Have a manager of connections open them with this transport, as many as are asked for."""
    manager.__dict__["_admit_session"] = partial(_admit, manager)


def _admit(manager: StreamableHTTPSessionManager, requestor: AuthorizationContext | None) -> HandshakeTransport:
    """In the place of the manager's own way to make a transport."""
    session_id = uuid4().hex
    transport = HandshakeTransport(
        session_id,
        event_store=manager.event_store,
        security_settings=manager.security_settings,
        retry_interval=manager.retry_interval,
        idle_timeout=manager.session_idle_timeout,
    )
    if requestor is not None:
        manager._session_owners[session_id] = requestor
    manager._server_instances[session_id] = transport
    return transport


__all__ = ["HandshakeTransport", "answer_at_once"]
