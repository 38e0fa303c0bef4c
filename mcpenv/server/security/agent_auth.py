"""The authentication of agents from settings: static bearer tokens, JSON Web Tokens, or both."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from typing import get_args
from urllib.parse import urlsplit

from fastmcp.server.auth import AccessToken, AuthProvider, JWTVerifier, MultiAuth, RemoteAuthProvider
from pydantic import AnyHttpUrl, ValidationError

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import Algorithm

from .control_auth import AgentTokens
from .host_check import is_loopback

logger = logging.getLogger("mcpenv")


def agent_auth_from(
    *,
    tokens: Mapping[str, str] | None = None,
    scopes: Mapping[str, Sequence[str]] | None = None,
    jwks_url: str | None = None,
    issuer: str | None = None,
    audience: str | None = None,
    algorithm: Algorithm = "RS256",
    oauth_at: str | None = None,
) -> AuthProvider | None:
    """Return the agent authentication of these settings; None without any.

    A static token's principal is its agent's name, a JSON Web Token's its subject.

    Args:
        tokens: name of the agent to its token.
        scopes: name of such an agent to its scopes.
        jwks_url: the URL of the issuer's keys; https, or http on this machine.
        issuer: the ``iss`` that JSON Web Tokens must have.
        audience: the ``aud`` that they must have, so that tokens for other services are refused.
        algorithm: the algorithm with which they must be signed.
        oauth_at: this server's URL for clients. MCP clients without a token are referred to the issuer (RFC 9728).
            None: they are not.

    Raises:
        ConfigurationError: a token that cannot be used, a URL of keys that is not safe, one of ``jwks_url``,
            ``issuer`` and ``audience`` without the others, or ``oauth_at`` without an issuer that has a URL.
    """
    static = AgentTokens(tokens or {}, scopes) if tokens or scopes else None
    if jwks_url is None and issuer is None and audience is None:
        if oauth_at is not None:
            raise ConfigurationError("OAuth needs an issuer: the URLs of it and of its keys, and the audience")
        return static
    if not jwks_url or not issuer or not audience:
        raise ConfigurationError(
            "JSON Web Tokens of agents need all three: the URL of the issuer's keys, the issuer, and the audience"
        )
    _check_url(jwks_url)
    known = get_args(Algorithm)
    if algorithm not in known:
        raise ConfigurationError(f"tokens signed with {algorithm!r} cannot be checked; use {', '.join(known)}")
    signed = SignedAgents(jwks_url, issuer, audience, algorithm, reserved=tokens or {})
    if oauth_at is not None:
        try:
            servers = [AnyHttpUrl(issuer)]
        except ValidationError as error:
            raise ConfigurationError(f"the issuer {issuer!r} has no URL at which clients could log in") from error
        advertised = RemoteAuthProvider(signed, authorization_servers=servers, base_url=oauth_at)
        return advertised if static is None else MultiAuth(server=advertised, verifiers={"static": static})
    return signed if static is None else MultiAuth(verifiers={"static": static, "jwt": signed})


class SignedAgents(JWTVerifier):
    """The agents with JSON Web Tokens, which name a subject and an expiry time (RFC 9068, section 2.2).

    Args:
        reserved: names of other principals. A token whose subject is one of them is refused.
    """

    def __init__(
        self, jwks_url: str, issuer: str, audience: str, algorithm: Algorithm, *, reserved: Container[str] = ()
    ) -> None:
        super().__init__(jwks_uri=jwks_url, issuer=issuer, audience=audience, algorithm=algorithm)
        self._reserved = reserved

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the agent of a token; None for a token that is invalid, expired, or lacks a required claim."""
        found = await super().verify_token(token)
        if found is None:
            return None
        # Without a subject, unrelated agents would share a session. Without an expiry, a lost token would be valid for
        # ever.
        if not isinstance(found.subject, str) or not found.subject or found.expires_at is None:
            logger.warning("a token of %s was refused: it has no subject, or no end", self.issuer)
            return None
        if found.subject in self._reserved:
            logger.warning("a token of %s was refused: its subject is the name of another agent", self.issuer)
            return None
        return found


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        usable = safe and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"the issuer's keys cannot be had from {url!r}: an https URL is needed, or http on this machine"
        )
