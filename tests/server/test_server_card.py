"""Server cards: what clients learn before they connect."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
from fastmcp import FastMCP
from fastmcp.server.auth import RemoteAuthProvider, StaticTokenVerifier
from mounted_worlds import ICON, Shop
from pydantic import AnyHttpUrl

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

PATHS = ("/mcp/server-card", "/.well-known/mcp/server-card.json")
TOKENS = StaticTokenVerifier(tokens={"secret-of-ada": {"client_id": "ada", "scopes": []}})

TEXT = {"type": "string", "minLength": 1, "maxLength": 100}
NAME = {"type": "string", "minLength": 3, "maxLength": 200, "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$"}
HEADER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
    },
}
REMOTE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["type", "url"],
    "properties": {
        "type": {"enum": ["sse", "streamable-http"]},
        "url": {"type": "string", "pattern": r"^https?://\S+$"},
        "headers": {"type": "array", "items": HEADER},
        "supportedProtocolVersions": {"type": "array", "items": {"type": "string"}},
    },
}
CARD = {
    "type": "object",
    "additionalProperties": False,
    "required": ["$schema", "description", "name", "version"],
    "properties": {
        "$schema": {"const": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"},
        "name": NAME,
        "title": TEXT,
        "description": TEXT,
        "version": {"type": "string", "maxLength": 255},
        "websiteUrl": {"type": "string"},
        "icons": {"type": "array", "items": {"type": "object", "required": ["src"]}},
        "remotes": {"type": "array", "items": REMOTE},
    },
}
"""The part of the extension's schema (v1) that mcpenv uses, with its required fields and limits."""


class Anybody(MCPEnvironment):
    """A world for anybody."""

    def __init__(self) -> None:
        @self.tool
        def look() -> str:
            return "dark"


def card(url: str, path: str = PATHS[0]) -> Any:
    reply = httpx.get(url + path)
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/mcp-server-card+json"
    found = reply.json()
    jsonschema.validate(found, CARD)
    return found


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extension("workers"))])
@pytest.mark.parametrize("mode", ["simulation", "production"])
def test_a_server_has_a_card_that_agrees_with_what_clients_see(mode: Any, workers: int) -> None:
    with serving(Shop, mode=mode, workers=workers) as url:
        found = card(url)
        assert found == card(url, PATHS[1])
    assert found["name"] == "127.0.0.1/shop" and found["title"] == "shop" and found["version"] == "3.1"
    assert found["description"] == "An environment around the shop."
    assert found["websiteUrl"] == "https://shop.example" and found["icons"][0]["src"] == ICON.src
    (remote,) = found["remotes"]
    assert remote["url"] == f"{url}/mcp" and "headers" not in remote
    assert {"2025-11-25", "2026-07-28"} <= set(remote["supportedProtocolVersions"])
    assert "tools" not in found


def test_the_public_url_gives_the_address_and_the_namespace() -> None:
    with serving(Shop, ServerConfig(public_url="https://shops.example.com/one/")) as url:
        found = card(url)
        assert found["name"] == "com.example.shops/shop"
        assert found["remotes"][0]["url"] == "https://shops.example.com/one/mcp"
        reply = httpx.get(url + PATHS[0], headers={"Origin": "https://elsewhere.example"})
        assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == "*"


def test_a_web_page_cannot_read_the_card_of_a_server_on_this_machine() -> None:
    with serving(Anybody) as url:
        assert httpx.get(url + PATHS[0], headers={"Origin": "https://elsewhere.example"}).status_code == 403
        assert httpx.get(url + PATHS[0], headers={"Host": "elsewhere.example"}).status_code == 421


def test_a_card_is_cached_and_validated() -> None:
    with serving(Anybody) as url:
        first = httpx.get(url + PATHS[0])
        assert "max-age" in first.headers["cache-control"]
        again = httpx.get(url + PATHS[0], headers={"If-None-Match": first.headers["etag"]})
        assert again.status_code == 304 and not again.content


def test_a_card_says_that_agents_need_a_token_unless_they_find_out_where_to_get_one() -> None:
    with serving(Anybody, auth=TOKENS) as url:
        (header,) = card(url)["remotes"][0]["headers"]
        assert header["name"] == "Authorization" and header["isRequired"] and header["isSecret"]
    oauth = RemoteAuthProvider(
        TOKENS, authorization_servers=[AnyHttpUrl("https://login.example")], base_url="http://127.0.0.1"
    )
    with serving(Anybody, auth=oauth) as url:
        assert "headers" not in card(url)["remotes"][0]


def test_without_plain_mcp_there_is_no_card() -> None:
    with serving(Anybody, ServerConfig(require_handle=True)) as url:
        assert [httpx.get(url + path).status_code for path in PATHS] == [404, 404]


def test_long_texts_and_odd_names_fit_the_schema() -> None:
    class Odd(MCPEnvironment):
        __doc__ = "Words " * 50
        EXPOSED_NAME = "Müller & Söhne / 7"

        def __init__(self) -> None:
            super().__init__(FastMCP("unused"))

    with serving(Odd) as url:
        found = card(url)
    assert found["name"] == "127.0.0.1/M-ller-S-hne-7" and found["title"] == "Müller & Söhne / 7"
    assert len(found["description"]) == 100

    class Full(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(FastMCP("com.example/full"))

    with serving(Full) as url:
        assert card(url)["name"] == "com.example/full"
