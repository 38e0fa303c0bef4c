"""The address by which clients reach this server, for the URLs that it returns."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from starlette.types import Scope

_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}


def base_url_of(scope: Scope, trusted_proxies: tuple[str, ...]) -> str:
    """Return the base URL from the point of view of the request's client.

    Args:
        trusted_proxies: addresses or networks of proxies whose ``X-Forwarded-`` headers are used ("*": all).
    """
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme = _SCHEMES[scope["scheme"]]
    host = headers.get(b"host") or _listening(scope)
    path = str(scope.get("app_root_path") or scope.get("root_path") or "")
    client = scope.get("client")
    if "*" in trusted_proxies or (client and trusted_proxies and _is_in(client[0], trusted_proxies)):
        scheme = _first(headers.get(b"x-forwarded-proto")) or scheme
        host = _first(headers.get(b"x-forwarded-host")) or host
        path = _first(headers.get(b"x-forwarded-prefix")) or path
    return f"{_SCHEMES.get(scheme, scheme)}://{host}{path.rstrip('/')}"


@lru_cache(maxsize=1024)
def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    try:
        client = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket's peer, or an unknown one
        return False
    return any(client in ipaddress.ip_network(network) for network in networks)


def _first(value: str | None) -> str:
    """Return the first of several values: that of the proxy nearest to the client."""
    return (value or "").split(",")[0].strip()


def _listening(scope: Scope) -> str:
    host, port = scope.get("server") or ("127.0.0.1", None)
    return str(host) if port is None else f"{host}:{port}"
