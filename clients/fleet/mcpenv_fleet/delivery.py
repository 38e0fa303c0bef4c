"""Track the delivery of a tool call over HTTP. The delivery decides if the call may be sent again."""

from __future__ import annotations

import json
from contextvars import ContextVar
from enum import Enum
from typing import Any

import httpx2

TRANSPORT_FAULT = -32098
"""The code of the JSON-RPC error that represents an HTTP fault, so that the fault ends only its own call."""

_REFUSED = frozenset({401, 403, 404, 429, 503})
"""Statuses with which a server refuses a request before it runs any code."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Delivery(Enum):
    """The delivery state of a call."""

    NOT_SENT = "not sent"
    """The tool cannot have run."""
    SENT = "sent"
    """The tool may have run. Only an answer tells the outcome."""


class Call:
    """One tool call in progress. `NotingClient` sets the attributes.

    Attributes:
        delivery: the delivery state.
        fault: the fault in transit; None if the server answered, or no response has arrived yet.
        http_status: the HTTP status of the fault; None if there was no response.
    """

    def __init__(self) -> None:
        self.delivery = Delivery.NOT_SENT
        self.fault: str | None = None
        self.http_status: int | None = None


CURRENT: ContextVar[Call | None] = ContextVar("mcpenv_fleet_call", default=None)
"""The call that the running task is making. The HTTP client sends in the context of the caller, and finds it here."""


class NotingClient(httpx2.AsyncClient):
    """The HTTP client that records the delivery of the call in `CURRENT`.

    A tool call that fails in transit is answered by a JSON-RPC error. An exception would end the whole session.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request."""
        call = CURRENT.get()
        if call is None or not _calls_tool(request):
            return await super().send(request, **options)
        call.delivery = Delivery.SENT
        try:
            response = await super().send(request, **options)
        except _NOT_SENT as error:
            call.delivery = Delivery.NOT_SENT
            return _failed(request, call, f"the server does not accept connections ({type(error).__name__})")
        except httpx2.TransportError as error:
            return _failed(request, call, f"the connection broke ({type(error).__name__})")
        if response.status_code < 400:
            fault = await _unreadable(response)
            return response if fault is None else _failed(request, call, fault)
        answer = await _answer_in(response)
        if answer is not None:
            return httpx2.Response(200, json=answer, request=request)
        call.http_status = response.status_code
        if response.status_code in _REFUSED:
            call.delivery = Delivery.NOT_SENT
        return _failed(request, call, f"the server answered with HTTP status {response.status_code}")


def _calls_tool(request: httpx2.Request) -> bool:
    return request.method == "POST" and _sent(request).get("method") == "tools/call"


def _sent(request: httpx2.Request) -> dict[str, Any]:
    message = json.loads(request.content)
    return message if isinstance(message, dict) else {}


async def _unreadable(response: httpx2.Response) -> str | None:
    """Return why a body is not an answer; None if it is one, or is an event stream, which may still contain one."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return None
    try:
        body = await response.aread()
    except httpx2.TransportError as error:
        return f"the connection broke within the answer ({type(error).__name__})"
    try:
        return None if isinstance(json.loads(body), dict) else "the server's answer is not a JSON object"
    except ValueError:
        return f"the server's answer is not JSON, but {kind or 'of no type'}"


async def _answer_in(response: httpx2.Response) -> Any:
    """Return the JSON-RPC error in a body, which 2026-07-28 servers send with error statuses too; None for others."""
    try:
        found = json.loads(await response.aread())
    except (ValueError, httpx2.TransportError):
        return None
    finally:
        await response.aclose()
    answers = isinstance(found, dict) and found.get("jsonrpc") == "2.0" and "error" in found
    return found if answers and found.get("id") is not None else None


def _failed(request: httpx2.Request, call: Call, fault: str) -> httpx2.Response:
    call.fault = fault
    error = {"code": TRANSPORT_FAULT, "message": fault}
    return httpx2.Response(
        200, json={"jsonrpc": "2.0", "id": _sent(request).get("id"), "error": error}, request=request
    )


__all__ = ["CURRENT", "Call", "Delivery", "NotingClient"]
