"""The cookie of the console's sign-in: an expiry, signed with the control token, so that no worker keeps state."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import cookie_parser
from starlette.types import Scope

LIFETIME_S = 12 * 3600
"""Seconds after which a browser has to sign in again."""

_SAFE = frozenset({"GET", "HEAD"})


class ConsoleCookie:
    """The cookie that stands for the control token in a browser.

    A new control token ends every sign-in. Signing out removes the cookie from the browser. Nothing revokes a copy of
    the cookie before its expiry.

    Args:
        token: the control token.
        public_url: the server's address for others, whose pages are the server's own too.
        now: a clock, in seconds since the epoch.

    Attributes:
        name: the name of the cookie. Cookies of one host are common to all its ports, so each token has a name.
    """

    def __init__(self, token: str, public_url: str | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(token.encode(), b"mcpenv console cookie", "sha256")
        self._public = None if public_url is None else _origin_of(public_url)
        self._now = now
        self.name = f"mcpenv_console_{hashlib.sha256(self._key).hexdigest()[:8]}"

    def issue(self) -> str:
        """Return a new value, valid for `LIFETIME_S`."""
        signed = f"{int(self._now()) + LIFETIME_S}.{secrets.token_hex(8)}"
        return f"{signed}.{self._sign(signed)}"

    def header(self, value: str, *, secure: bool, framed: bool) -> str:
        """Return the ``Set-Cookie`` header; an empty value removes the cookie.

        Args:
            secure: True if browsers use https.
            framed: True if pages of other sites may show the console in a frame. Browsers send cookies there only with
                ``SameSite=None``, which needs https. The cookie is partitioned (CHIPS) then: what was set in a frame
                of one site is not sent in frames of others, nor outside of a frame.
        """
        site = "None; Partitioned" if secure and framed else "Strict"
        lifetime = LIFETIME_S if value else 0
        return (
            f"{self.name}={value}; Max-Age={lifetime}; Path=/; HttpOnly; SameSite={site}{'; Secure' if secure else ''}"
        )

    def expiry_of(self, scope: Scope) -> float | None:
        """Return the expiry of the request's cookie, in seconds since the epoch; None without a valid one.

        A request from another origin has none, whatever it sends.
        """
        given = _cookies(scope).get(self.name)
        if given is None or not self.is_own_page(scope):
            return None
        signed, _, mac = given.rpartition(".")
        if not hmac.compare_digest(self._sign(signed).encode(), mac.encode()):
            return None
        expires_at = int(signed.partition(".")[0])  # signed, so it is a number
        return float(expires_at) if expires_at > self._now() else None

    def is_own_page(self, scope: Scope) -> bool:
        """Return True if a request comes from a page of this server, and not from one of another origin."""
        headers: dict[bytes, str] = {name: value.decode("latin-1").strip().lower() for name, value in scope["headers"]}
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site not in (None, "same-origin", "none"):
            return False
        if origin is not None:
            return origin == self._public or origin.partition("://")[2] == headers.get(b"host")
        # Browsers send an Origin with every WebSocket, and with every request that may change something.
        if scope["type"] == "websocket":
            return False
        return site == "same-origin" or scope["method"] in _SAFE

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def _cookies(scope: Scope) -> dict[str, str]:
    given = b"; ".join(value for name, value in scope["headers"] if name == b"cookie")
    return cookie_parser(given.decode("latin-1")) if given else {}


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
