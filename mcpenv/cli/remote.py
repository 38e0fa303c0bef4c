"""Access to a server at a URL over MCP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import httpx2
from fastmcp import Client
from fastmcp.client.transports import SSETransport, StreamableHttpTransport, infer_transport
from mcp import MCPError

from mcpenv.errors import ConfigurationError
from mcpenv_client.connection.addresses import is_loopback, without_password
from mcpenv_client.connection.refused import stated_reason
from mcpenv_client.errors import ConnectionFailed, ListingFailed
from mcpenv_client.types.tools import Tool

from .tokens import AGENT_TOKEN

CONNECT_S = 15.0
"""Timeout of connecting and of the first answer, in seconds."""

READ_S = 300.0
"""Read timeout in seconds; mcp's own default."""

_ENDPOINTS = ("mcp", "sse")


def mcp_url(url: str) -> str:
    """Return the MCP endpoint of a server: ``/mcp`` below the URL, unless the URL is an endpoint already."""
    scheme, host, path, query, fragment = urlsplit(url)
    if path.rstrip("/").rpartition("/")[2] not in _ENDPOINTS:
        path = path.rstrip("/") + "/mcp"
    return urlunsplit((scheme, host, path, query, fragment))


def base_url(url: str) -> str:
    """Return the server's root URL, without endpoint and query."""
    scheme, host, path, _, _ = urlsplit(mcp_url(url))
    return urlunsplit((scheme, host, path.rstrip("/").rpartition("/")[0], "", ""))


class Bearer(httpx2.Auth):
    """The credentials that a command presents to the server at a URL.

    Args:
        token: an agent's token; None for an anonymous client.

    Attributes:
        refused: True if the server answered the latest request with 401.
        reason: status and message with which a server of mcpenv refused the latest request; None if it did not.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token
        self.refused = False
        self.reason: str | None = None

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token to a request and note a refusal; httpx2 calls this for every request."""
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        # mcp raises an error that names neither the status nor the reason.
        self.refused = response.status_code == httpx2.codes.UNAUTHORIZED
        self.reason = await stated_reason(response)

    def refusal(self, url: str) -> ConfigurationError:
        """Return the error for a server at ``url`` that answered 401."""
        another = "" if self._token is None else ", and refuses this one"
        problem = f"it requires an agent's token{another} (--agent-token-file, or {AGENT_TOKEN})"
        return ConfigurationError(f"{without_password(url)}: {problem}")


def _transport(address: str) -> StreamableHttpTransport | SSETransport:
    transport = infer_transport(address)
    assert isinstance(transport, StreamableHttpTransport | SSETransport)
    if is_loopback(address):
        transport.httpx_client_factory = _without_proxy
    return transport


def _without_proxy(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
    **_: Any,
) -> httpx2.AsyncClient:
    """Return an HTTP client like mcp's, but without the environment's proxies, which cannot reach this machine.

    FastMCP's request to follow redirects is ignored: mcp follows them itself, and only if a token may be sent there.
    """
    timeout = timeout or httpx2.Timeout(CONNECT_S, read=READ_S)
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, trust_env=False)


@asynccontextmanager
async def connected(url: str, bearer: Bearer, era: str = "auto") -> AsyncIterator[Client[Any]]:
    """Connect an MCP client to the server at ``url``, even if its endpoint is not called ``/mcp``.

    Args:
        url: the server.
        bearer: its credentials.
        era: the protocol era: "auto", "legacy", or a version of the stateless protocol.

    Raises:
        ConnectionFailed: no server listens there, or it does not speak MCP.
        ConfigurationError: the server requires a token, or another one.
    """
    try:
        tried = dict.fromkeys([mcp_url(url), url]) if urlsplit(url).path.strip("/") else [mcp_url(url)]
    except ValueError as error:
        raise ConnectionFailed(url, str(error)) from error
    failure: Exception | None = None
    reason: str | None = None
    refused = False
    for address in tried:
        bearer.reason = None
        try:
            client: Client[Any] = Client(_transport(address), auth=bearer, init_timeout=CONNECT_S, mode=era)
            await client.__aenter__()  # type: ignore[no-untyped-call]
        except (MCPError, RuntimeError, OSError, ValueError, httpx.InvalidURL) as error:
            failure, reason = failure or error, reason or bearer.reason
            refused = refused or bearer.refused
            continue
        try:
            yield client
        finally:
            await client.__aexit__(None, None, None)  # type: ignore[no-untyped-call]
        return
    assert failure is not None
    if refused:
        raise bearer.refusal(url) from failure
    raise ConnectionFailed(url, reason or str(failure.__cause__ or failure) or type(failure).__name__) from failure


async def list_tools(client: Client[Any], url: str, bearer: Bearer) -> list[Tool]:
    """Return the server's tools.

    Raises:
        ListingFailed: the server does not list them.
        ConfigurationError: the server requires a token for that, or another one.
    """
    try:
        listed = await client.list_tools()
    except (MCPError, RuntimeError) as error:
        if bearer.refused:
            raise bearer.refusal(url) from error
        raise ListingFailed(url, bearer.reason or str(error)) from error
    return [Tool.from_mcp(tool.model_dump(mode="json", by_alias=True, exclude_none=True)) for tool in listed]
