"""The check of Host and Origin of every request, also of WebSockets, so that no web page reaches a server on loopback.

A page on another site can make a browser send requests here (DNS rebinding, cross-site WebSockets). It cannot choose
the Host and Origin that the browser sends with them.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_AUTHORITY = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\s:@/?#\[\]\\]+))(?::[0-9]{0,5})?")
"""The pattern of a host with an optional port, and nothing else (RFC 9110, section 7.2)."""

EXEMPT = frozenset({"/health", "/ready"})
"""The paths of probes, which send the address of the pod as Host."""


class Guard:
    """The ASGI middleware that refuses requests with a foreign Host (421) or Origin (403) before they reach ``app``.

    Args:
        allowed_hosts: host names to accept, besides loopback ones and the address that the server listens on.
        allowed_origins: browser origins (``https://host``) to accept, besides loopback ones and the server's own.
        any_origin: accept every origin, for what everybody may read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        any_origin: bool = False,
    ) -> None:
        self._app = app
        self._any_origin = any_origin
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in EXEMPT:
            await self._app(scope, receive, send)
            return
        refused = self._refuse(scope)
        if refused is None:
            await self._app(scope, receive, send)
            return
        status, message = refused
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": message})
        else:
            body = {"message": message, "code": "UNAUTHORIZED"}
            await JSONResponse(body, status_code=status)(scope, receive, send)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        if len(hosts) > 1 or len(origins) > 1:
            return 400, "more than one Host or Origin"
        host = hosts[0].strip().lower() if hosts else ""
        if not self._host_allowed(host, scope):
            return 421, "this server does not answer to that Host; allow it with --allowed-hosts"
        if origins and not self._any_origin and not self._origin_allowed(origins[0].strip().lower(), host):
            return 403, "this server does not answer to that Origin"
        return None

    def _host_allowed(self, host: str, scope: Scope) -> bool:
        name = _host_name(host)
        server = scope.get("server")
        listening = str(server[0]).lower() if server else ""
        return is_loopback(name) or (name != "" and name == listening) or name in self._hosts or host in self._hosts

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        scheme, _, authority = origin.partition("://")
        name = _host_name(authority)
        if scheme not in ("http", "https") or not name:
            return False
        return authority == host or (is_loopback(name) and is_loopback(_host_name(host)))


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return True if a host name or address is this machine and nothing else."""
    if host in ("localhost", "localhost."):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # From Python 3.13 on, an IPv4 address within an IPv6 one (::ffff:127.0.0.1) is one of the loopback, too.
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None


@functools.lru_cache(maxsize=256)
def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets; empty if it is malformed."""
    found = _AUTHORITY.fullmatch(host)
    return "" if found is None else found["address"] or found["name"]
