"""The credentials: the control token of orchestrators, bearer tokens of agents. They are compared in constant time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from fastmcp.server.auth import AccessToken, TokenVerifier
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import check_token
from mcpenv_client.errors import AGENTS_TOKEN

logger = logging.getLogger("mcpenv")

WARN_EVERY_S = 60.0
"""Seconds between two warnings of one address for one reason."""

MAX_WARNED, MAX_ROUTE = 1_024, 60

_warned: dict[tuple[str, str], float] = {}

SUBPROTOCOL = "mcpenv.token."
"""The prefix of the base64url form of the control token, for browsers, whose WebSockets cannot set headers."""


class ControlGate:
    """The gate before ``app`` that passes requests with a token of it.

    Others get 401, which says of the token no more than that it is an agent's, if it is.

    Args:
        tokens: the control token, and others that are as good here; None or no token at all passes all requests.
        admits: functions that return True for a request with another credential that is as good.
        header: a further header that may have the token, in lower case; None: there is none.
        agents: the static tokens of agents, if there are any.
    """

    def __init__(
        self,
        app: ASGIApp,
        *tokens: str | None,
        admits: Sequence[Callable[[Scope], bool]] = (),
        header: bytes | None = None,
        agents: AgentTokens | None = None,
    ) -> None:
        self._app = app
        self._agents = agents
        self._header = header
        self._admits = admits
        self._digests = [
            _digest(check_token(token, "a token of the control plane")) for token in tokens if token is not None
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if not self._digests or self.passes(scope):
            await self._app(scope, receive, send)
            return
        token = _presented(scope)
        of_agent = token is not None and self._agents is not None and await self._agents.verify_token(token) is not None
        _warn(scope, token, of_agent)
        message = "this needs the control token" + (AGENTS_TOKEN if of_agent else "")
        body = {"message": message, "code": "UNAUTHORIZED"}
        refusal = JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})
        if scope["type"] != "websocket":
            await refusal(scope, receive, send)
            return
        await receive()
        if "websocket.http.response" in scope.get("extensions", {}):
            await send({"type": "websocket.http.response.start", "status": 401, "headers": refusal.raw_headers})
            await send({"type": "websocket.http.response.body", "body": bytes(refusal.body)})
        else:
            await send({"type": "websocket.close", "code": 4401})

    def passes(self, scope: Scope) -> bool:
        """Return True if a request presents a token, or a credential that is as good."""
        token = _presented(scope)
        if token is None and self._header is not None:
            token = next((value.decode("latin-1") for name, value in scope["headers"] if name == self._header), None)
        if any(_matches(digest, token) for digest in self._digests):
            return True
        return any(admits(scope) for admits in self._admits)


class AgentTokens(TokenVerifier):
    """The agents with static bearer tokens.

    Args:
        tokens: name of the agent (its principal) to its token.
        scopes: name of the agent to its scopes, for tools with ``auth=require_scopes(...)``; None: no scopes.

    Raises:
        ConfigurationError: a token is too short, two agents have the same token, or scopes name an unknown agent.
    """

    def __init__(self, tokens: Mapping[str, str], scopes: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__()
        self._scopes = {name: list(allowed) for name, allowed in (scopes or {}).items()}
        for name in self._scopes:
            if name not in tokens:
                raise ConfigurationError(f"there are scopes of {name!r}, but no token")
        self._names = {_digest(check_token(token, f"the token of {name!r}")): name for name, token in tokens.items()}
        if len(self._names) < len(tokens):
            raise ConfigurationError("two agents have the same token")

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the agent of a token; None for a wrong one."""
        found: str | None = None
        for digest, name in self._names.items():
            if _matches(digest, token):
                found = name
        if found is None:
            return None
        return AccessToken(token=token, client_id=found, scopes=self._scopes.get(found, []), subject=found)


def _warn(scope: Scope, token: str | None, of_agent: bool) -> None:
    """Log a refusal, once in `WARN_EVERY_S` for each address and reason."""
    address = (scope.get("client") or ("unknown",))[0]
    given = any(name == b"authorization" for name, _ in scope["headers"])
    reason = "wrong control token" if token else "no usable control token" if given else "no control token"
    reason = "an agent's token, not the control token" if of_agent else reason
    now = time.monotonic()
    if now - _warned.get((address, reason), -WARN_EVERY_S) < WARN_EVERY_S:
        return
    if len(_warned) >= MAX_WARNED:
        _warned.clear()
    _warned[address, reason] = now
    route = "/" + scope["path"].split("/")[1][:MAX_ROUTE]  # the rest may be a secret, such as the id of a session
    logger.warning("%s %r from %s was refused: %s", scope.get("method", "WebSocket"), route, address, reason)


def _presented(scope: Scope) -> str | None:
    """Return the token of a request, from its header or a WebSocket's subprotocol."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) == 1:
        scheme, _, token = given[0].decode("latin-1").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None
    for name in scope.get("subprotocols", ()):
        if name.startswith(SUBPROTOCOL):
            encoded = name.removeprefix(SUBPROTOCOL)
            try:
                return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("latin-1")
            except (binascii.Error, ValueError):
                return None
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def same_token(expected: str, given: str) -> bool:
    """Return True if two tokens are the same, compared in constant time."""
    return _matches(_digest(expected), given)


def _matches(digest: bytes, token: str | None) -> bool:
    # Hashes have one length, so that the time of the comparison does not depend on the token.
    return hmac.compare_digest(digest, _digest(token or "")) and token is not None
