"""Late transports: a handshake connection whose requests are answered with plain JSON, until there is more to say.

MCP 2025-11-25, basic/transports: the server answers a POST with an event stream or with one JSON object, as it likes.
The transport of `mcp` decides once for all, and JSON would drop progress, logs and questions to the client. But most
calls send nothing of that, and a stream costs more than half of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import anyio
import pydantic_core
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.server.streamable_http import (
    CONTENT_TYPE_JSON,
    CONTENT_TYPE_SSE,
    MCP_SESSION_ID_HEADER,
    REQUEST_CANCELLED,
    REQUEST_STREAM_BUFFER_SIZE,
    EventMessage,
    SSEEvent,
    StreamableHTTPServerTransport,
    check_accept_headers,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    INTERNAL_ERROR,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

QUICK_S: Final = 1.0
"""A call that takes longer gets its stream, whether it has said something or not: the client may need to resume it.

Not less: on a busy server calls wait that long for each other, and streams would make it busier.
"""

_SLOW: Final[Any] = object()
"""Stands in a request's messages for the time that has run out."""


class LateTransport(StreamableHTTPServerTransport):
    """`mcp`'s transport of one connection; whatever is not a plain request in good order is left to that."""

    async def _handle_post_request(self, scope: Scope, request: Request, receive: Receive, send: Send) -> None:
        call = await self._plain_request(request)
        writer = self._read_stream_writer
        if call is None or writer is None:
            await super()._handle_post_request(scope, request, receive, send)
            return
        request_id = str(call.id)
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        # Before the request is at work: its event comes before all others, here and where they are kept.
        priming = await self._mint_priming_event(request_id, version)
        sender, reader = anyio.create_memory_object_stream[EventMessage](REQUEST_STREAM_BUFFER_SIZE)
        self._request_streams[request_id] = sender, reader

        def out_of_time() -> None:
            with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
                sender.send_nowait(_SLOW)  # a full buffer has woken the reader already

        timer = asyncio.get_running_loop().call_later(QUICK_S, out_of_time)
        first: Any = None
        try:
            # They are closed when the session ends; the second is when the tool closes its stream, too.
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                await writer.send(self._create_session_message(call, request, request_id, version))
                first = await reader.receive()
        finally:
            timer.cancel()
            if first is None or _answers(first):
                await self._clean_up_memory_streams(request_id)
        if _answers(first):
            await self._create_json_response(first.message)(scope, receive, send)
            return
        if first is None and self.is_terminated:
            ended = self._create_error_response(
                "Session terminated before the request completed", HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR
            )
            await ended(scope, receive, send)
            return
        said = [] if priming is None else [priming]
        if first is not None and first is not _SLOW:
            said.append(self._create_event_data(first))
        over = isinstance(first, EventMessage) and isinstance(first.message, JSONRPCError)
        await self._stream(request_id, said, reader, over, scope, receive, send)

    async def _plain_request(self, request: Request) -> JSONRPCRequest | None:
        """The request that a POST brings; None if there is anything to look at more closely."""
        headers = request.headers
        if (
            headers.get("content-type") != CONTENT_TYPE_JSON
            or headers.get(MCP_SESSION_ID_HEADER) != self.mcp_session_id
        ):
            return None
        if not all(check_accept_headers(request)):
            return None
        try:
            message = jsonrpc_message_adapter.validate_python(
                pydantic_core.from_json(await request.body()), by_name=False
            )
        except (ValueError, ValidationError):
            return None
        return message if isinstance(message, JSONRPCRequest) and message.method != "initialize" else None

    async def _stream(
        self,
        request_id: str,
        said: list[SSEEvent],
        reader: MemoryObjectReceiveStream[EventMessage],
        over: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer with an event stream: what was said so far, and what comes, unless it is over."""
        sse_writer, sse_reader = anyio.create_memory_object_stream[SSEEvent](0)
        self._sse_stream_writers[request_id] = sse_writer

        async def say() -> None:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                for event in said:
                    await sse_writer.send(event)
            if over:
                await sse_writer.aclose()
            else:
                await self._run_sse_writer(request_id, sse_writer, reader, None)

        headers = {
            "Cache-Control": "no-cache, no-transform",
            "Connection": "keep-alive",
            "Content-Type": CONTENT_TYPE_SSE,
            MCP_SESSION_ID_HEADER: self.mcp_session_id or "",
        }
        response = EventSourceResponse(content=sse_reader, data_sender_callable=say, headers=headers)
        try:
            await response(scope, receive, send)
        finally:
            await sse_writer.aclose()
            await sse_reader.aclose()
            await self._clean_up_memory_streams(request_id)


def answer_late(manager: StreamableHTTPSessionManager) -> None:
    """Have the connections that a manager opens from now on be `LateTransport`s."""
    manager._admit_session = partial(_admit, manager._admit_session)  # type: ignore[method-assign]


def _admit(
    admit: Callable[..., StreamableHTTPServerTransport | None], *given: Any
) -> StreamableHTTPServerTransport | None:
    transport = admit(*given)
    if transport is not None:
        transport.__class__ = LateTransport  # it is the manager that knows how to make one, and this adds no state
    return transport


def _answers(message: Any) -> bool:
    """Whether it ends the request, as JSON.

    That the request was cancelled does not: who has cancelled it may be gone, and `mcp`'s client, on its way out, fails
    with such an answer if it comes as JSON.
    """
    if not isinstance(message, EventMessage):
        return False
    said = message.message
    return isinstance(said, JSONRPCResponse) or (
        isinstance(said, JSONRPCError) and said.error.code != REQUEST_CANCELLED
    )


__all__ = ["LateTransport", "answer_late"]
