"""Agent authentication from settings: which tokens are let in, as whom, and which settings are refused."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server.dependencies import get_access_token, get_http_headers
from joserfc import jwk, jwt

from mcpenv import ConfigurationError, Context, MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ISSUER, AUDIENCE = "https://issuer.example", "https://env.example/mcp"
ADAS_TOKEN, BOBS_TOKEN = "the-secret-of-ada", "the-secret-of-bob"
ERAS = ("legacy", "2026-07-28")
TIMEOUT_S = 30

RSA = jwk.RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "ec", "use": "sig"})
STRANGER = jwk.RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})


class Visitors(MCPEnvironment):
    """Counts calls per instance."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.calls = 0

        @self.tool
        async def visit(ctx: Context) -> int:
            self.calls += 1
            return self.calls


class Keys(BaseHTTPRequestHandler):
    """An issuer's published keys."""

    def do_GET(self) -> None:
        body = json.dumps({"keys": [RSA.as_dict(private=False), EC.as_dict(private=False)]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing is logged."""


@pytest.fixture(scope="module")
def jwks_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/keys"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url(jwks_url: str) -> Iterator[str]:
    """A server that takes static tokens and signed ones."""
    auth = agent_auth_from(
        tokens={"ada": ADAS_TOKEN, "bob": BOBS_TOKEN}, jwks_url=jwks_url, issuer=ISSUER, audience=AUDIENCE
    )
    with serving(Visitors, auth=auth) as address:
        yield address


def claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token with changes; None removes a claim."""
    said = {"sub": "carol", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, **changes}
    return {name: claim for name, claim in said.items() if claim is not None}


def signed(key: Any = RSA, algorithm: str = "RS256", **changes: Any) -> str:
    """A token."""
    return jwt.encode({"alg": algorithm, "kid": "ec" if key is EC else "rsa"}, claims(**changes), key, [algorithm])


def status(url: str, token: str | None) -> int:
    """Return the answer to a listing."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    headers = {"Accept": "application/json, text/event-stream"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.post(f"{url}/mcp", json=request, headers=headers).status_code


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


async def visit(url: str, token: str, era: Any) -> int:
    async with asyncio.timeout(TIMEOUT_S), Client(url, auth=token, mode=era) as client:
        calls: int = (await client.call_tool("visit")).data
        return calls


@pytest.mark.parametrize("era", ERAS)
def test_a_signed_token_is_one_agent_whatever_its_connections(url: str, era: str) -> None:
    first = signed(sub=f"carol of {era}")
    again = signed(sub=f"carol of {era}", exp=int(time.time()) + 1200)
    other = signed(sub=f"dave of {era}")
    assert first != again
    assert [asyncio.run(visit(f"{url}/mcp", token, era)) for token in (first, again, other)] == [1, 2, 1]


class Passing(MCPEnvironment):
    """Shows the headers that a tool can pass on to another server."""

    def __init__(self) -> None:
        @self.tool
        async def headers() -> dict[str, str]:
            token = get_access_token()
            return {**get_http_headers(include_all=True), "known": token.token if token else ""}


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_cannot_pass_on_the_token_among_the_headers_of_a_request(era: Any) -> None:
    async def headers(url: str) -> dict[str, str]:
        transport = StreamableHttpTransport(url, headers={"X-Mine": "1"}, auth=ADAS_TOKEN)
        async with asyncio.timeout(TIMEOUT_S), Client(transport, mode=era) as client:
            found: dict[str, str] = (await client.call_tool("headers")).structured_content
            return found

    with serving(Passing, auth=agent_auth_from(tokens={"ada": ADAS_TOKEN})) as url:
        found = asyncio.run(headers(f"{url}/mcp"))
    assert found.pop("known") == ADAS_TOKEN and found["x-mine"] == "1"
    assert ADAS_TOKEN not in str(found)


def test_static_tokens_work_beside_signed_ones(url: str) -> None:
    assert [asyncio.run(visit(f"{url}/mcp", token, "auto")) for token in (ADAS_TOKEN, ADAS_TOKEN, BOBS_TOKEN)] == [
        1,
        2,
        1,
    ]


def unsigned() -> str:
    header = base64url(b'{"alg":"none"}')
    return f"{header}.{signed().split('.')[1]}."


def signed_with_the_public_key() -> str:
    """Return a token that only a server accepts that lets the token choose how it is checked."""
    message = ".".join(map(base64url, (b'{"alg":"HS256","kid":"rsa"}', json.dumps(claims()).encode())))
    return f"{message}.{base64url(hmac.digest(RSA.as_pem(private=False), message.encode(), 'sha256'))}"


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


WRONG: dict[str, Callable[[], str | None]] = {
    "none": lambda: None,
    "a static one that nobody has": lambda: "the-secret-of-eve",
    "of another issuer": lambda: signed(iss="https://elsewhere.example"),
    "for another service": lambda: signed(aud="https://mail.example"),
    "past": lambda: signed(exp=int(time.time()) - 5),
    "without an end": lambda: signed(exp=None),
    "without a subject": lambda: signed(sub=None),
    "without a subject, but with a client": lambda: signed(sub=None, client_id="carol"),
    "with an empty subject": lambda: signed(sub=""),
    "with a subject that is no name": lambda: signed(sub=7),
    "with the name of a static one": lambda: signed(sub="ada"),
    "by another's key": lambda: signed(STRANGER),
    "by another algorithm": lambda: signed(EC, "ES256"),
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "cut off": lambda: signed()[:-4],
    "without signature": lambda: signed().rpartition(".")[0],
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_token_is_refused(url: str, kind: str) -> None:
    assert status(url, signed()) == 200
    assert status(url, WRONG[kind]()) == 401


def test_a_handle_needs_the_token_too(url: str) -> None:
    async def episode() -> tuple[int, list[int]]:
        async with EnvClient(url) as env:
            mcp_url = (await env.reset()).info["mcp_url"]
            base = mcp_url.removesuffix("/mcp")
            refused = [await asyncio.to_thread(status, base, token) for token in (None, signed(sub="ada"))]
            return await visit(mcp_url, signed(sub="an/agent"), "auto"), refused

    assert asyncio.run(episode()) == (1, [401, 401])


def test_other_algorithms_when_asked_for(jwks_url: str) -> None:
    auth = agent_auth_from(jwks_url=jwks_url, issuer=ISSUER, audience=AUDIENCE, algorithm="ES256")
    with serving(Visitors, ServerConfig(), auth=auth) as url:
        assert status(url, signed(EC, "ES256")) == 200
        assert status(url, signed()) == 401
        # Without static tokens beside them, all subjects are theirs.
        assert status(url, signed(EC, "ES256", sub="ada")) == 200


def test_an_issuer_that_does_not_answer_lets_nobody_in() -> None:
    auth = agent_auth_from(jwks_url="http://127.0.0.1:1/keys", issuer=ISSUER, audience=AUDIENCE)
    with serving(Visitors, auth=auth) as url:
        assert status(url, signed()) == 401


def test_nothing_given_is_no_authentication() -> None:
    assert agent_auth_from() is None
    assert agent_auth_from(tokens={}) is None


SIGNED: dict[str, Any] = {"jwks_url": "https://issuer.example/keys", "issuer": ISSUER, "audience": AUDIENCE}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *[({name: value}, "need all three") for name, value in SIGNED.items()],
        *[({**SIGNED, name: None}, "need all three") for name in SIGNED],
        *[({**SIGNED, name: ""}, "need all three") for name in SIGNED],
        ({**SIGNED, "jwks_url": "http://issuer.example/keys"}, "an https URL is needed"),
        ({**SIGNED, "jwks_url": "issuer.example/keys"}, "an https URL is needed"),
        ({**SIGNED, "jwks_url": "https:///keys"}, "an https URL is needed"),
        ({**SIGNED, "jwks_url": "https://[/keys"}, "an https URL is needed"),
        ({**SIGNED, "algorithm": "HS256"}, "'HS256' cannot be checked"),
        ({**SIGNED, "algorithm": "none"}, "'none' cannot be checked"),
        ({"oauth_at": "https://env.example"}, "OAuth needs an issuer"),
        ({**SIGNED, "issuer": "our issuer", "oauth_at": "https://env.example"}, "'our issuer' has no URL"),
        ({"tokens": {"ada": "short"}}, "needs 8 or more"),
        ({"tokens": {"ada": ADAS_TOKEN, "eve": ADAS_TOKEN}}, "the same token"),
    ],
)
def test_settings_that_would_not_guard_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        agent_auth_from(**settings)
    assert ADAS_TOKEN not in str(refused.value)


@pytest.mark.parametrize("tokens", [None, {"ada": ADAS_TOKEN}])
def test_clients_without_a_token_are_told_where_to_get_one(jwks_url: str, tokens: dict[str, str] | None) -> None:
    auth = agent_auth_from(
        tokens=tokens, jwks_url=jwks_url, issuer=ISSUER, audience=AUDIENCE, oauth_at="https://env.example"
    )
    with serving(Visitors, auth=auth) as url:
        mcp_url = httpx.post(f"{url}/reset").json()["info"]["mcp_url"]
        for address in (f"{url}/mcp", mcp_url):
            refused = httpx.post(address, json={}, headers={"Accept": "application/json, text/event-stream"})
            assert refused.status_code == 401
            where = refused.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
            assert where.startswith("https://env.example/.well-known/oauth-protected-resource")
            metadata = httpx.get(url + where.removeprefix("https://env.example")).json()
            assert metadata["resource"] == "https://env.example/"
            assert metadata["authorization_servers"] == [ISSUER + "/"]
        assert asyncio.run(visit(f"{url}/mcp", signed(), "auto")) == 1
        if tokens is not None:
            assert asyncio.run(visit(f"{url}/mcp", ADAS_TOKEN, "auto")) == 1
