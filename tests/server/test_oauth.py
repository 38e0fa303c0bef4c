"""OAuth: a stock client that gets its token from an authorization server is let in at ``/mcp`` and at an episode."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp import Client
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from fastmcp.utilities.tests import HeadlessOAuth
from mcp.server.auth.settings import ClientRegistrationOptions
from worlds import World

from mcpenv.server.serve import serving

ERAS = ("legacy", "2026-07-28")
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that is its own authorization server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    options = ClientRegistrationOptions(enabled=True)
    with serving(World, port=port, auth=InMemoryOAuthProvider(base_url=base, client_registration_options=options)):
        yield base


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


@pytest.mark.parametrize("era", ERAS)
def test_a_stock_client_finds_the_authorization_server_and_is_let_in_at_mcp(url: str, era: Any) -> None:
    async def main() -> None:
        async with Client(f"{url}/mcp", auth=HeadlessOAuth(mcp_url=f"{url}/mcp"), mode=era) as client:
            assert (await client.call_tool("add")).data == 1

    run(main())


@pytest.mark.parametrize("era", ERAS)
def test_a_stock_client_finds_the_authorization_server_from_an_episodes_address(url: str, era: Any) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=url) as http:
            reset = (await http.post("/reset")).json()
            mcp_url = reset["info"]["mcp_url"]
            async with Client(mcp_url, auth=HeadlessOAuth(mcp_url=mcp_url), mode=era) as client:
                assert (await client.call_tool("add")).data == 1
            state = (await http.get("/state", params={"session_id": reset["session_id"]})).json()
            assert state["step_count"] == 1

    run(main())


def test_the_metadata_names_a_resource_that_every_agents_address_begins_with(url: str) -> None:
    mcp_url = httpx.post(f"{url}/reset").json()["info"]["mcp_url"]
    for address in (f"{url}/mcp", mcp_url):
        refused = httpx.post(address, json={}, headers={"Accept": "application/json, text/event-stream"})
        assert refused.status_code == 401
        challenge = refused.headers["www-authenticate"]
        metadata = httpx.get(challenge.partition('resource_metadata="')[2].partition('"')[0])
        assert metadata.status_code == 200
        assert address.startswith(metadata.json()["resource"])


def test_no_web_page_on_another_site_reaches_the_authorization_server(url: str) -> None:
    path = f"{url}/.well-known/oauth-protected-resource"
    assert httpx.get(path).status_code == 200
    assert httpx.get(path, headers={"Origin": "https://evil.example"}).status_code == 403
    assert httpx.get(path, headers={"Host": "evil.example"}).status_code == 421
