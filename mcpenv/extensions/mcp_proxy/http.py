"""The transport to a server at a URL: FastMCP's, with an HTTP client that tracks deliveries and faults."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
from fastmcp.client.transports import StreamableHttpTransport

from .delivery import CURRENT, Request
from .stdio import MAX_LINE
from .texts import well_formed_json

logger = logging.getLogger("mcpenv.upstream")

TRANSPORT_FAULT = -32098
"""The code of the JSON-RPC error that represents an HTTP fault, so that the fault ends only its own call."""

MAX_ANSWER = MAX_LINE
"""Maximum bytes of the answer to one call, progress and log messages included. A longer one is not read."""

_REFUSED = frozenset({401, 403, 404, 429, 503})
"""Statuses with which a server refuses a request before it runs any code."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that describe the body as sent, not as decoded."""


def http_transport(url: str, headers: Mapping[str, str]) -> StreamableHttpTransport:
    """Return the transport to the server at ``url``."""
    return StreamableHttpTransport(
        url,
        headers=dict(headers),
        httpx_client_factory=_client,  # type: ignore[arg-type]
        max_sse_event_size=None,  # `_Stream` bounds the whole answer
    )


def _client(**options: Any) -> httpx2.AsyncClient:
    options.setdefault("follow_redirects", True)
    options.setdefault("timeout", httpx2.Timeout(30.0, read=300.0))
    return httpx2.AsyncClient(transport=_Watched(), **options)


class _TooLong(httpx2.TransportError):
    """Raised for an answer of more than `MAX_ANSWER` bytes."""


class _Watched(httpx2.AsyncHTTPTransport):
    """An HTTP transport that answers a failed call with a JSON-RPC error, and notes the reason."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = CURRENT.get()
        if call is None:
            return await self._send(request)
        if call.starting:
            return await self._start(request, call)
        if request.method == "GET":
            return await self._resume(request, call)
        if request.method != "POST":
            return await self._send(request)
        message = json.loads(request.content)
        if "id" not in message or "method" not in message:
            return await self._tell(request)
        return await self._ask(request, call, message["id"])

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. The response is decoded, and has well-formed texts."""
        response = await super().handle_async_request(request)
        return httpx2.Response(
            response.status_code,
            headers=_of_content(response),
            stream=_WellFormed(response),
            request=request,
            extensions=response.extensions,
        )

    async def _start(self, request: httpx2.Request, call: Request) -> httpx2.Response:
        """Send a request that starts a session.

        Errors are raised unchanged: the SDK detects the server's era by them.
        """
        try:
            response = await self._send(request)
        except httpx2.TransportError as error:
            call.fault = f"the connection broke ({type(error).__name__})"
            raise
        call.fault = None if response.status_code < 400 else f"it answered with HTTP status {response.status_code}"
        return response

    async def _tell(self, request: httpx2.Request) -> httpx2.Response:
        """Send a notification, or the answer to a question of the server. A failure ends no call."""
        try:
            return await self._send(request)
        except httpx2.TransportError as error:
            logger.warning("a message to %s was not delivered: %s", request.url.host, type(error).__name__)
            return httpx2.Response(202, request=request)

    async def _resume(self, request: httpx2.Request, call: Request) -> httpx2.Response:
        """Ask for the rest of an event stream that ended early. It repeats no call."""
        response = await self._send(request)
        if response.status_code < 400:
            call.fault = None
            response.stream = _Stream(response.stream, call)  # type: ignore[arg-type]
        return response

    async def _ask(self, request: httpx2.Request, call: Request, number: Any) -> httpx2.Response:
        """Send a request, and classify its outcome."""

        def failed(sent: bool, fault: str) -> httpx2.Response:
            call.sent, call.fault = sent, fault
            return _error(request, number, {"code": TRANSPORT_FAULT, "message": fault})

        call.sent, call.fault = False, None
        try:
            response = await self._send(request)
        except _NOT_SENT as error:
            return failed(False, f"it does not accept connections ({type(error).__name__})")
        except httpx2.TransportError as error:
            return failed(True, f"the connection broke ({type(error).__name__})")
        call.sent = True
        status = response.status_code
        kind = str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
        if 300 <= status < 400:
            # The client follows it to the same origin. Unless it is replaced, this stays the reason.
            call.sent, call.fault = False, f"it redirects to {response.headers.get('location')}"
            return response
        if status < 400 and kind == "text/event-stream":
            response.stream = _Stream(response.stream, call)  # type: ignore[arg-type]
            return response
        try:
            body = await _read(response)
        except _TooLong as error:
            return failed(True, str(error))
        except httpx2.TransportError as error:
            if status < 400:
                return failed(True, f"the connection broke within its answer ({type(error).__name__})")
            body = b""
        finally:
            await response.aclose()
        if status == 404 and "mcp-session-id" in request.headers:
            call.world_lost = True
            return failed(False, "it answered with HTTP status 404")
        answer = _answer(body, number, unnumbered=400 <= status < 500 and status not in _REFUSED)
        if status >= 400:
            if answer is not None and "error" in answer:  # which 2026-07-28 servers send with error statuses too
                return _error(request, number, answer["error"])
            return failed(status not in _REFUSED, f"it answered with HTTP status {status}")
        if kind != "application/json":
            return failed(True, f"it answered with {kind or 'no content'}, which is no MCP")
        if answer is None:
            return failed(True, "it answered with JSON that is no response to the call")
        return httpx2.Response(status, headers=_of_content(response), content=body, request=request)


class _WellFormed(httpx2.AsyncByteStream):
    """The decoded body of a response, in whole lines, through `well_formed_json`."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []  # of a line that has not ended
        size = 0
        async for chunk in self._response.aiter_bytes():
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER:
                raise _TooLong(_too_long())
            if b"\n" in chunk:
                lines, end, rest = b"".join(parts).rpartition(b"\n")
                yield well_formed_json(lines + end)
                parts, size = [rest], len(rest)
        yield well_formed_json(b"".join(parts))

    async def aclose(self) -> None:
        await self._response.aclose()


class _Stream(httpx2.AsyncByteStream):
    """The event stream that answers a call. Its reader closes it after the answer, so its end is a fault."""

    def __init__(self, stream: httpx2.AsyncByteStream, call: Request) -> None:
        self._stream = stream
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._stream:
                size += len(chunk)
                if size > MAX_ANSWER:
                    raise _TooLong(_too_long())
                yield chunk
        except _TooLong as error:
            self._call.fault = str(error)
            raise
        except httpx2.TransportError as error:
            self._call.fault = f"the connection broke within its answer ({type(error).__name__})"
            raise
        self._call.fault = "its event stream ended without an answer"

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _read(response: httpx2.Response) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise _TooLong(_too_long())
    return b"".join(parts)


def _of_content(response: httpx2.Response) -> dict[str, str]:
    """Return the headers of a response that describe its decoded body."""
    return {name: value for name, value in response.headers.items() if name.lower() not in _OF_THE_WIRE}


def _too_long() -> str:
    return f"its answer has more than {MAX_ANSWER} bytes"


def _error(request: httpx2.Request, number: Any, error: Any) -> httpx2.Response:
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": number, "error": error}, request=request)


def _answer(body: bytes, number: Any, *, unnumbered: bool) -> dict[str, Any] | None:
    """Return the JSON-RPC response in a body if it answers the request of this id, else None.

    Args:
        unnumbered: True to accept an error of any id too: a request refused before its id was read has none.
    """
    try:
        found = json.loads(body)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return None
    if unnumbered and isinstance(found.get("error"), dict):
        return found
    if str(found.get("id")) != str(number):
        return None
    return found if isinstance(found.get("result"), dict) or isinstance(found.get("error"), dict) else None
