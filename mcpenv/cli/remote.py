"""A server at a URL, as the command line sees it: over MCP, and by the two descriptions that mcpenv's servers give."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from fastmcp import Client
from mcp import MCPError
from mcp_types import Tool as MCPTool

from mcpenv_client.errors import ConnectionFailed, ListingFailed
from mcpenv_client.tools import Tool

CONNECT_S = 15.0
"""How long a server may take to answer at first."""

_ENDPOINTS = ("mcp", "sse")


def is_url(target: str) -> bool:
    """Whether ``target`` is a server and not an environment's code."""
    return target.startswith(("http://", "https://"))


def mcp_url(url: str) -> str:
    """The MCP endpoint of a server: ``/mcp`` below the URL, unless the URL is an endpoint already."""
    scheme, host, path, query, fragment = urlsplit(url)
    if path.rstrip("/").rpartition("/")[2] not in _ENDPOINTS:
        path = path.rstrip("/") + "/mcp"
    return urlunsplit((scheme, host, path, query, fragment))


def base_url(url: str) -> str:
    """The server's root, without the endpoint and query."""
    scheme, host, path, _, _ = urlsplit(mcp_url(url))
    return urlunsplit((scheme, host, path.rstrip("/").rpartition("/")[0], "", ""))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client[Any]]:
    """An MCP client of the server at ``url``; any MCP server, also one whose endpoint is not called ``/mcp``.

    Raises:
        ConnectionFailed: nobody listens there, or does not speak MCP.
    """
    try:
        tried = dict.fromkeys([mcp_url(url), url]) if urlsplit(url).path.strip("/") else [mcp_url(url)]
    except ValueError as error:
        raise ConnectionFailed(url, str(error)) from error
    failure: Exception | None = None
    for address in tried:
        try:
            client: Client[Any] = Client(address, init_timeout=CONNECT_S)
            await client.__aenter__()  # type: ignore[no-untyped-call]
        except (MCPError, RuntimeError, OSError, ValueError, httpx.InvalidURL) as error:
            failure = failure or error
            continue
        try:
            yield client
        finally:
            await client.__aexit__(None, None, None)  # type: ignore[no-untyped-call]
        return
    assert failure is not None
    raise ConnectionFailed(url, str(failure.__cause__ or failure) or type(failure).__name__) from failure


async def list_tools(client: Client[Any], url: str) -> list[Tool]:
    """The server's tools.

    Raises:
        ListingFailed: it does not list them.
    """
    try:
        return [tool_from_mcp(tool) for tool in await client.list_tools()]
    except (MCPError, RuntimeError) as error:
        raise ListingFailed(url, str(error)) from error


def tool_from_mcp(tool: MCPTool) -> Tool:
    """The contract's form of a listed tool."""
    listed = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Tool(
        name=listed["name"],
        title=listed.get("title"),
        description=listed.get("description", ""),
        input_schema=listed["inputSchema"],
        output_schema=listed.get("outputSchema"),
        annotations=listed.get("annotations"),
        meta=listed.get("_meta"),
    )


async def description(url: str, path: str) -> dict[str, Any] | None:
    """The JSON object at ``/metadata`` or ``/schema``; None where the server has none, as other MCP servers."""
    async with httpx.AsyncClient(timeout=CONNECT_S) as http:
        try:
            reply = await http.get(base_url(url) + path)
            body = reply.json() if reply.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, ValueError):
            return None
    return body if isinstance(body, dict) else None
