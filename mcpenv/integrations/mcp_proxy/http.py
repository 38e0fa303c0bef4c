"""The transport to a server at a URL: FastMCP's, with an HTTP client that notes deliveries and faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
from fastmcp.client.transports import StreamableHttpTransport

from .delivery import CURRENT, Delivery, Request

TRANSPORT_FAULT = -32098
"""The code of the JSON-RPC error that stands for an HTTP fault, so that the fault ends its call and no other."""

_REFUSED = frozenset({401, 403, 404, 429, 503})
"""Statuses with which a server refuses a request before it runs anything."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def http_transport(url: str, headers: Mapping[str, str]) -> StreamableHttpTransport:
    """Return the transport to the server at ``url``."""
    return StreamableHttpTransport(url, headers=dict(headers), httpx_client_factory=_client)  # type: ignore[arg-type]


def _client(**options: Any) -> httpx2.AsyncClient:
    options.setdefault("follow_redirects", True)
    options.setdefault("timeout", httpx2.Timeout(30.0, read=300.0))
    return httpx2.AsyncClient(transport=_Watched(), **options)


class _Watched(httpx2.AsyncHTTPTransport):
    """HTTP that answers a tool call that failed on its way by a JSON-RPC error, and notes why."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = CURRENT.get()
        if call is None or request.method != "POST":
            return await super().handle_async_request(request)
        try:
            response = await super().handle_async_request(request)
        except _NOT_SENT as error:
            return _failed(request, call, Delivery.NOT_SENT, f"it does not accept connections ({type(error).__name__})")
        except httpx2.TransportError as error:
            return _failed(request, call, Delivery.SENT, f"the connection broke ({type(error).__name__})")
        if response.status_code < 400:
            call.delivery = Delivery.SENT
            return response
        try:
            body = await response.aread()
        except httpx2.TransportError:
            body = b""
        await response.aclose()
        call.world_lost = response.status_code == 404 and "mcp-session-id" in request.headers
        if not call.world_lost and _is_answer(body):
            call.delivery = Delivery.SENT
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=body, request=request)
        delivery = Delivery.NOT_SENT if response.status_code in _REFUSED else Delivery.SENT
        return _failed(request, call, delivery, f"it answered with HTTP status {response.status_code}")


def _failed(request: httpx2.Request, call: Request, delivery: Delivery, fault: str) -> httpx2.Response:
    call.delivery, call.fault = delivery, fault
    sent = json.loads(request.content)
    answer = {"jsonrpc": "2.0", "id": sent.get("id"), "error": {"code": TRANSPORT_FAULT, "message": fault}}
    if "id" not in sent:
        return httpx2.Response(202, request=request)
    return httpx2.Response(200, json=answer, request=request)


def _is_answer(body: bytes) -> bool:
    """Return True if a body is a JSON-RPC response, which 2026-07-28 servers send with error statuses too."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("jsonrpc") == "2.0" and "error" in found and "id" in found


__all__ = ["http_transport"]
