"""The sign-in of the console: the control token once, and a cookie from then on."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered, plain_json, refusal
from mcpenv.server.security.control_auth import same_token
from mcpenv.server.sessions.rate_limit import Rate
from mcpenv_client.errors import InvalidMessage, RateLimited, Unauthorized

from .console_cookie import ConsoleCookie

ATTEMPTS_PER_S = 1.0
"""Attempts to sign in that a client's address has at each worker, a second."""


class SignIn:
    """The handlers.

    Args:
        cookie: the cookie of signed-in browsers; None without a control token, where nobody has to sign in.
    """

    def __init__(self, server: EnvServer, cookie: ConsoleCookie | None) -> None:
        self._server = server
        self._config = server.config
        self._cookie = cookie
        self._attempts = Rate(ATTEMPTS_PER_S)

    async def session(self, request: Request) -> Response:
        """Answer whether the page has to sign in."""
        cookie = self._cookie
        expires_at = None if cookie is None else cookie.expiry_of(request.scope)
        return plain_json(self._told(cookie is None or self._server.access.passes(request.scope), expires_at))

    async def sign_in(self, request: Request) -> Response:
        """Set the cookie for a right token."""
        try:
            self._attempts.spend("" if request.client is None else request.client.host)
        except RateLimited as error:
            answer = refusal(error)
            answer.headers["Retry-After"] = "1"
            return answer
        return await self._signed_in(request)

    async def sign_out(self, request: Request) -> Response:
        """Remove the cookie."""
        cookie = self._cookie
        answer = plain_json(self._told(cookie is None, None))
        if cookie is not None:
            if not cookie.is_own_page(request.scope):
                return refusal(_Foreign("sign out from the console's own page"))
            answer.headers.append("Set-Cookie", self._header(request, cookie, ""))
        return answer

    async def _signed_in(self, request: Request) -> Response:
        answer = await self._checked(request)
        cookie = self._cookie
        if answer.status_code == 200 and cookie is not None:
            answer.headers.append("Set-Cookie", self._header(request, cookie, cookie.issue()))
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @answered
    async def _checked(self, request: Request) -> dict[str, Any]:
        """Return the body of the answer to a right token.

        Raises:
            InvalidMessage: the body is no object with one text, ``token``.
            Unauthorized: the token is wrong, or the page is of another origin.
        """
        cookie, expected = self._cookie, self._config.control_token
        if cookie is not None and not cookie.is_own_page(request.scope):
            raise _Foreign("sign in from the console's own page; programs send Authorization: Bearer instead")
        body = await self._server.control.body(request)
        token = body.get("token")
        if not isinstance(token, str) or set(body) != {"token"}:
            raise InvalidMessage('the body is {"token": "..."}, with the control token of this server')
        if expected is not None and not same_token(expected, token):
            raise _WrongToken("this is not the control token of this server")
        return self._told(True, None)

    def _told(self, signed_in: bool, expires_at: float | None) -> dict[str, Any]:
        return {
            "signed_in": signed_in,
            "needs_token": self._cookie is not None,
            "expires_at": expires_at,
            "mode": self._config.mode.value,
            "name": self._server.source.name,
            "records": self._config.record is not None,
        }

    def _header(self, request: Request, cookie: ConsoleCookie, value: str) -> str:
        url = self._server.control.base_url(request)
        return cookie.header(value, secure=url.startswith("https://"), framed=bool(self._config.frame_ancestors))


class _WrongToken(Unauthorized):
    """The error for a token that is not the server's."""

    http_status = 401


class _Foreign(Unauthorized):
    """The error for a page of another origin."""

    http_status = 403
