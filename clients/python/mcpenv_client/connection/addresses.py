"""The addresses of servers: as http and ws URLs, and without secrets for messages."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from mcpenv_client.wire.version import PROTOCOL_VERSION


def http_base(base_url: str, route: str = "/ws") -> str:
    """Return ``base_url`` as an http(s) URL, without a trailing slash or ``route``.

    Raises:
        ValueError: not an http, https, ws or wss URL with a host.
    """
    try:
        parts = urlsplit(base_url)
        scheme = {"ws": "http", "wss": "https", "http": "http", "https": "https"}.get(parts.scheme)
        usable = scheme is not None and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"base_url {base_url!r}: {error}") from error
    if not usable:
        raise ValueError(f"base_url {base_url!r} is not an http(s):// or ws(s):// URL")
    path = parts.path.rstrip("/").removesuffix(route).rstrip("/")
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def control_base(base_url: str) -> str:
    """Return `http_base` of the address that an orchestrator gives.

    Raises:
        ValueError: it is an address of MCP clients, or no usable URL.
    """
    base = http_base(base_url)
    if base.endswith("/mcp"):
        raise ValueError(
            f"base_url {base_url!r} is the address of MCP clients. Give the server's base URL, without "
            f"{_mcp_path(urlsplit(base).path)!r}; an MCP client, such as MCPToolClient, takes this one"
        )
    return base


def _mcp_path(path: str) -> str:
    """Return the end of a path that is an address of MCP clients: ``/mcp``, or an episode's."""
    _, found, handle = path.rpartition("/episodes/")
    return found + handle if found else "/mcp"


class Servers:
    """The servers of a fleet, of which a client uses one at a time.

    Args:
        given: the address of one server, several addresses, or a file with one address a line, which is read again
            whenever a server does not answer. A function gives those at which a session may go on, its own first: the
            caller chooses the server of a new one.

    Raises:
        ValueError: an address is no usable URL, or there is none.
        OSError: the file cannot be read.
    """

    def __init__(self, given: str | Sequence[str] | Path | Callable[[], Sequence[str]]) -> None:
        self._given = given
        self._all = self._read()
        self.current = self._all[0]

    @property
    def several(self) -> bool:
        """True if there may be another server."""
        return len(self._all) > 1 or not isinstance(self._given, str | Sequence)

    def __len__(self) -> int:
        return 1 if callable(self._given) else len(self._all)

    def next(self, after: str | None = None) -> None:
        """Use the next server from now on; do nothing if it is another one than ``after`` already."""
        if after not in (None, self.current):
            return
        if isinstance(self._given, Path) or callable(self._given):
            with contextlib.suppress(OSError, ValueError):  # it is written just now: the last addresses stay
                self._all = self._read()
        found = self._all.index(self.current) if self.current in self._all else -1
        self.current = self._all[(found + 1) % len(self._all)]

    def _read(self) -> list[str]:
        given = self._given() if callable(self._given) else self._given
        if isinstance(given, Path):
            lines = [line.strip() for line in given.read_text(encoding="utf-8").splitlines()]
            given = [line for line in lines if line and not line.startswith("#")]
        urls = [control_base(url) for url in ([given] if isinstance(given, str) else given)]
        if not urls:
            raise ValueError("no address of a server is given")
        return list(dict.fromkeys(urls))


def ws_url(base_url: str) -> str:
    """Return the address of the control socket under ``base_url``."""
    return "ws" + http_base(base_url).removeprefix("http") + f"/ws?protocol={PROTOCOL_VERSION}"


def without_password(url: str) -> str:
    """Return ``url`` without its password, for messages."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def is_loopback(url: str) -> bool:
    """Return True if the host is this machine. Proxies are not used for it."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
        # Until Python 3.12, an IPv4 address within an IPv6 one (::ffff:127.0.0.1) is not one of the loopback itself.
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return host == "localhost"
