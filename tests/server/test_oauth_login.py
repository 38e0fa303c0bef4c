"""A login by OAuth in all its steps, at an authorization server of its own: what `--agent-oauth` refers clients to."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastmcp import Client
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider
from joserfc import jwk, jwt
from mcp.server.auth.provider import AuthorizationCode, RefreshToken
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcpenv import MCPEnvironment
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving

BACK = "http://127.0.0.1:9/back"
KEY = jwk.RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
TIMEOUT_S = 60


class Visitors(MCPEnvironment):
    """Counts calls per instance."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.calls = 0

        @self.tool
        def visit() -> int:
            """Count a call."""
            self.calls += 1
            return self.calls


class Issuer(InMemoryOAuthProvider):
    """An authorization server that lets everybody in, with signed access tokens."""

    def __init__(self, url: str, audience: str) -> None:
        super().__init__(base_url=url, client_registration_options=ClientRegistrationOptions(enabled=True))
        self.url, self.audience = url, audience

    def get_routes(self, mcp_path: str | None = None) -> list[Route]:
        return [*super().get_routes(mcp_path), Route("/keys", self.keys)]

    async def keys(self, request: Request) -> JSONResponse:
        return JSONResponse({"keys": [KEY.as_dict(private=False)]})

    def token(self, subject: str, **claims: Any) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": self.audience, "sub": subject, "iat": now, "exp": now + 600}
        return jwt.encode({"alg": "RS256", "kid": "one"}, usual | {"jti": secrets.token_hex(8)} | claims, KEY)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        given = await super().exchange_authorization_code(client, authorization_code)
        return given.model_copy(update={"access_token": self.token(str(client.client_id))})

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        given = await super().exchange_refresh_token(client, refresh_token, scopes)
        return given.model_copy(update={"access_token": self.token(str(client.client_id))})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[str, Issuer]]:
    """A server, and the authorization server that it refers clients to."""
    port, other = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    issuer = Issuer(f"http://127.0.0.1:{other}", f"{url}/")
    auth = agent_auth_from(jwks_url=f"{issuer.url}/keys", issuer=issuer.url, audience=issuer.audience, oauth_at=url)
    with serving(Visitors, port=other, auth=issuer), serving(Visitors, port=port, auth=auth, max_concurrent_envs=8):
        yield url, issuer


def visit(address: str, token: str) -> int:
    async def main() -> int:
        async with asyncio.timeout(TIMEOUT_S), Client(address, auth=token) as client:
            count: int = (await client.call_tool("visit")).data
            return count

    return asyncio.run(main())


def status(address: str, token: str) -> int:
    headers = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {token}"}
    return httpx.post(address, json={}, headers=headers).status_code


@pytest.mark.parametrize("at", ["/mcp", "an episode"])
def test_a_client_logs_in_and_refreshes_its_token_in_the_same_session(at: str, places: tuple[str, Issuer]) -> None:
    url, _ = places
    address = f"{url}/mcp" if at == "/mcp" else httpx.post(f"{url}/reset").json()["info"]["mcp_url"]
    # -- discovery
    refused = httpx.post(address, json={}, headers={"Accept": "application/json, text/event-stream"})
    assert refused.status_code == 401
    metadata_at = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
    protected = httpx.get(metadata_at).json()
    (server,) = protected["authorization_servers"]
    login = httpx.get(f"{server.rstrip('/')}/.well-known/oauth-authorization-server").json()
    # -- registration
    asked = {"redirect_uris": [BACK], "token_endpoint_auth_method": "none", "client_name": "by hand"}
    grants = {"grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]}
    registered = httpx.post(login["registration_endpoint"], json=asked | grants)
    assert registered.status_code == 201, registered.text
    client_id = registered.json()["client_id"]
    # -- authorization, with PKCE
    verifier = secrets.token_urlsafe(48)
    challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": BACK,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "state": "the-state",
        "resource": protected["resource"],
    }
    sent_back = httpx.get(login["authorization_endpoint"], params=query)
    assert sent_back.status_code == 302, sent_back.text
    answer = parse_qs(urlsplit(sent_back.headers["location"]).query)
    assert answer["state"] == ["the-state"]
    form = {"client_id": client_id, "redirect_uri": BACK, "resource": protected["resource"]}
    exchange = form | {"grant_type": "authorization_code", "code": answer["code"][0]}
    stolen = httpx.post(login["token_endpoint"], data=exchange | {"code_verifier": secrets.token_urlsafe(48)})
    assert stolen.status_code in (400, 401)
    first = httpx.post(login["token_endpoint"], data=exchange | {"code_verifier": verifier})
    assert first.status_code == 200, first.text
    assert visit(address, first.json()["access_token"]) == 1
    # -- refresh
    again = form | {"grant_type": "refresh_token", "refresh_token": first.json()["refresh_token"]}
    second = httpx.post(login["token_endpoint"], data=again)
    assert second.status_code == 200, second.text
    assert second.json()["access_token"] != first.json()["access_token"]
    assert visit(address, second.json()["access_token"]) == 2


@pytest.mark.parametrize(
    "claims",
    [{"aud": "http://127.0.0.1:9/"}, {"iss": "http://127.0.0.1:9"}, {"exp": 1}, {"exp": None}, {"sub": ""}],
    ids=lambda claims: next(iter(claims)),
)
def test_a_token_of_the_issuer_for_something_else_is_refused(claims: Any, places: tuple[str, Issuer]) -> None:
    url, issuer = places
    assert status(f"{url}/mcp", issuer.token("ada")) != 401
    assert status(f"{url}/mcp", issuer.token("ada", **claims)) == 401
