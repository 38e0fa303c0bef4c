"""The description of a server for clients before they connect: a server card.

It is the card of MCP's extension for server cards (SEP-2127, which replaced SEP-1649; schema v1), a draft in 2026. It
names the server and its address, not its tools.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastmcp import FastMCP
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from .connections import RESOURCE

MEDIA_TYPE = "application/mcp-server-card+json"
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
PATHS = ("/mcp/server-card", "/.well-known/mcp/server-card.json")
"""The paths of the card: that of SEP-2127, and that of SEP-1649, which crawlers ask for."""

MAX_TEXT = 100
"""Maximum characters of title and description."""

MAX_AGE_S = 3600

NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
"""The form of a name: a namespace in reverse DNS, and the server's name in it."""


class ServerCard:
    """The endpoint of a server's card.

    Args:
        server: returns the server at ``/mcp``.
        description: returns the environment's docstring.
        base_url: returns the server's base URL for the client of a request.
    """

    def __init__(
        self,
        server: Callable[[], FastMCP],
        description: Callable[[], str],
        base_url: Callable[[Scope], str],
    ) -> None:
        self._server = server
        self._description = description
        self._base_url = base_url

    async def answer(self, request: Request) -> Response:
        """Return the card, or 304 if the client has it."""
        base = self._base_url(request.scope).rstrip("/")
        body = json.dumps(card(self._server(), self._description(), base)).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {
            "Access-Control-Allow-Origin": "*",  # an answer to a foreign Origin that is not allowed is 403 all the same
            "Access-Control-Allow-Methods": "GET",
            "Access-Control-Allow-Headers": "Content-Type, If-None-Match",
            "Access-Control-Expose-Headers": "ETag",
            "Cache-Control": f"public, max-age={MAX_AGE_S}",
            "ETag": etag,
        }
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=MEDIA_TYPE, headers=headers)


def card(server: FastMCP, docstring: str, base_url: str) -> dict[str, Any]:
    """Return the card of a server.

    Args:
        server: the server at ``/mcp``.
        docstring: the environment's.
        base_url: the server's base URL.
    """
    remote: dict[str, Any] = {
        "type": "streamable-http",
        "url": f"{base_url}/mcp",
        "supportedProtocolVersions": [*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS],
    }
    # An authentication with routes tells clients without a token where to get one.
    if server.auth is not None and not server.auth.get_routes(mcp_path=RESOURCE):
        described = "A bearer token of the agent: Bearer TOKEN"
        remote["headers"] = [{"name": "Authorization", "description": described, "isRequired": True, "isSecret": True}]
    name = server.name
    if not NAME.fullmatch(name):
        slug = re.sub(r"[^a-zA-Z0-9._-]+", "-", name).strip("-") or "environment"
        name = f"{_namespace(urlsplit(base_url).hostname or 'localhost')}/{slug}"
    return {"$schema": CARD_SCHEMA, **_identity(server, docstring, name), "remotes": [remote]}


def identity_of(server: FastMCP, docstring: str) -> dict[str, Any]:
    """Return the part of a card that does not depend on an address."""
    return _identity(server, docstring, server.name)


def _identity(server: FastMCP, docstring: str, name: str) -> dict[str, Any]:
    said = inspect.cleandoc(docstring).partition("\n")[0] or (server.instructions or "").partition("\n")[0]
    entry: dict[str, Any] = {
        "name": name,
        "title": _short(server.name),
        "description": _short(said or server.name),
        "version": server.version,
    }
    if server.website_url is not None:
        entry["websiteUrl"] = server.website_url
    if server.icons:
        entry["icons"] = [icon.model_dump(mode="json", by_alias=True, exclude_none=True) for icon in server.icons]
    return entry


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _namespace(host: str) -> str:
    """Return a host name in reverse DNS; an address stays as it is, with hyphens for colons."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ".".join(reversed(host.rstrip(".").split(".")))
    return host.replace(":", "-")
