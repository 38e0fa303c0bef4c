"""The program that the official suite starts against its own servers: `MCPToolClient`, with the server's URL.

``MCP_CONFORMANCE_SCENARIO`` names the scenario, ``MCP_CONFORMANCE_PROTOCOL_VERSION`` the revision, and
``MCP_CONFORMANCE_CONTEXT`` holds what a scenario gives its client. What users would say, click or keep in a file is
said here; everything else is `MCPToolClient`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp_types import ElicitRequestFormParams, ElicitResult

from mcpenv_client import Tool
from mcpenv_client.mcp_client import MCPToolClient, Protocol

CALLBACK = "http://localhost:3000/callback"
SAMPLES = {"string": "text", "number": 1.5, "integer": 2, "boolean": True, "array": [], "object": {}}
CONNECT_TIMEOUT_S = 400
"""The suite starts one program per scenario, all of them at once."""
CLIENT_ID_URL = "https://conformance-test.local/client-metadata.json"
"""The address at which the suite takes a client's metadata for known."""


class Wallet:
    """Keeps tokens and registrations in memory; an `mcp` ``TokenStorage``."""

    def __init__(self, registered: OAuthClientInformationFull | None) -> None:
        self._tokens: OAuthToken | None = None
        self._client = registered

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class Browser:
    """Somebody who says yes on the authorization server's page."""

    def __init__(self) -> None:
        self._redirected = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient(timeout=CONNECT_TIMEOUT_S) as http:
            self._redirected = (await http.get(url, follow_redirects=False)).headers["location"]

    async def come_back(self) -> AuthorizationCodeResult:
        said = parse_qs(urlsplit(self._redirected).query)
        return AuthorizationCodeResult(
            code=said["code"][0], state=said.get("state", [None])[0], iss=said.get("iss", [None])[0]
        )


def oauth(url: str, context: dict[str, Any]) -> OAuthClientProvider:
    """OAuth as `mcp` does it, with the client that the scenario registered before, if it did."""
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "mcpenv",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
    )
    registered = None
    if "client_id" in context:
        known = {"client_id": context["client_id"], "client_secret": context.get("client_secret")}
        known["token_endpoint_auth_method"] = "client_secret_basic"
        registered = OAuthClientInformationFull.model_validate({**metadata.model_dump(), **known})
    browser = Browser()
    return OAuthClientProvider(
        url, metadata, Wallet(registered), browser.open, browser.come_back, client_metadata_url=CLIENT_ID_URL
    )


async def answer(context: Any, params: Any) -> ElicitResult:
    """Somebody who accepts every form as it is, and ticks what has no default."""
    assert isinstance(params, ElicitRequestFormParams)
    properties: dict[str, dict[str, Any]] = dict(params.requested_schema["properties"])
    return ElicitResult(action="accept", content={name: said.get("default", True) for name, said in properties.items()})


def calls(scenario: str, context: dict[str, Any], tools: list[Tool]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the scenario, else one of every tool."""
    if "toolCalls" in context:
        return [(call["name"], call["arguments"]) for call in context["toolCalls"]]
    if scenario == "json-schema-2020-12-preservation":
        shown, echo = tools
        return [(echo.name, {"schema": shown.input_schema})]
    return [(tool.name, samples(tool.input_schema)) for tool in tools]


def samples(schema: dict[str, Any]) -> dict[str, Any]:
    """A value for each required argument."""
    return {name: SAMPLES[schema["properties"][name]["type"]] for name in schema.get("required", ())}


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    protocol: Protocol = (
        "2026-07-28" if os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"] == "2026-07-28" else "2025-11-25"
    )
    auth = oauth(url, context) if scenario.startswith("auth/") else None
    async with MCPToolClient(
        url, protocol=protocol, auth=auth, elicitation_callback=answer, connect_timeout_s=CONNECT_TIMEOUT_S
    ) as client:
        for name, arguments in calls(scenario, context, await client.list_tools()):
            result = await client.call_tool(name, arguments, raise_on_error=False)
            print(name, "->", result.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
