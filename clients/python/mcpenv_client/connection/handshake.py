"""The handshake of a client with a server: options, request, and refusals."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from mcpenv_client.errors import (
    AGENTS_TOKEN,
    ConnectionFailed,
    ExecutionError,
    InvalidMessage,
    McpenvError,
    Unauthorized,
    from_wire,
)
from mcpenv_client.types.values import decode
from mcpenv_client.wire.version import MAX_MESSAGE_HEADER

from .addresses import is_loopback, without_password, ws_url

CONTROL_TOKEN = "MCPENV_CONTROL_TOKEN"
"""The environment variable with the control token of servers."""

CONTROL_TOKEN_HOSTS = "MCPENV_CONTROL_TOKEN_HOSTS"
"""The environment variable with the hosts to which that token is sent, separated by commas. Unset: all."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options with which a client connects and waits. All times are in seconds."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float = 330.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: tuple[tuple[str, str], ...] = ()


def may_have_token(url: str) -> bool:
    """Return True if a server may get the token in the environment.

    `CONTROL_TOKEN_HOSTS` names its host, as ``host``, ``host:port`` or ``*.domain``, or the server is on this machine,
    or the variable is not set.
    """
    named = os.environ.get(CONTROL_TOKEN_HOSTS)
    if named is None or is_loopback(url):
        return True
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "wss": 443}.get(parts.scheme, 80)
    own = (parts.hostname or "", f"{parts.hostname}:{port}")
    patterns = [pattern.strip().lower() for pattern in named.split(",")]
    return any(fnmatchcase(host, pattern) for host in own for pattern in patterns)


def headers_with_token(url: str, headers: Mapping[str, str], token: str | None) -> tuple[tuple[str, str], ...]:
    """Return headers with the control token, without whitespace around values: a file's newline is no part of a token.

    Args:
        url: the server.
        token: None for the one in the environment, if the server may have it and there is no ``Authorization``.

    Raises:
        ValueError: a value has a line break, or there are two credentials. The error has no value.
    """
    given = {name: value.strip() for name, value in headers.items()}
    has_own = any(name.lower() == "authorization" for name in given)
    if token is not None and has_own:
        raise ValueError("there is a token and a header Authorization; give one of them")
    if token is None:
        token = os.environ.get(CONTROL_TOKEN, "") if may_have_token(url) else ""
    if not has_own and (found := token.strip()):
        given["Authorization"] = f"Bearer {found}"
    for name, value in given.items():
        if not value.isprintable():
            raise ValueError(f"the header {name} has a line break or another character that cannot be sent")
    return tuple(given.items())


def headers_for(url: str, headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the headers for one server of a fleet: the token of the environment is only for the hosts named there."""
    token = os.environ.get(CONTROL_TOKEN, "").strip()
    if not token or may_have_token(url):
        return headers
    return tuple(header for header in headers if header != ("Authorization", f"Bearer {token}"))


@dataclass(frozen=True)
class Credential:
    """The credential by which a session can be resumed after its socket was lost: an id and a secret."""

    session_id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of the handshake."""
        return [("Mcpenv-Session-Id", self.session_id), ("Mcpenv-Session-Token", self.token)]


@dataclass(frozen=True)
class Handshake:
    """The request for a control socket.

    Attributes:
        url: the address; it may contain a secret.
        shown: the address without secrets, for messages.
        headers: the headers of the request.
        options: the options of the connection.
    """

    url: str
    shown: str
    headers: list[tuple[str, str]] = field(repr=False)
    options: ConnectionOptions = field(repr=False)

    @classmethod
    def to(
        cls,
        base_url: str,
        options: ConnectionOptions,
        *,
        credential: Credential | None = None,
        resume: bool = False,
        session_id: str | None = None,
    ) -> Handshake:
        """Return the request.

        Args:
            base_url: the server.
            options: the options of the connection.
            credential: the credential by which the session can be resumed.
            resume: True if the session exists. The server must not begin a new session.
            session_id: the id of a session that the server created, to join it.
        """
        url = ws_url(base_url) + ("&resume=1" if resume else "")
        shown = without_password(url)
        if session_id is not None:
            url += f"&session_id={session_id}"  # a secret: not shown
        headers = [*headers_for(base_url, options.headers), *(credential.headers() if credential is not None else ())]
        headers.append((MAX_MESSAGE_HEADER, str(options.max_message_bytes)))
        return cls(url, shown, headers, options)

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine. Proxies are not used for it."""
        return is_loopback(self.url)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert exceptions of the block to errors of this package.

        Raises:
            ConnectionFailed: the connection was refused, the server is unreachable or no WebSocket server, or
                ``connect_timeout_s`` passed.
            WireError: the server refused the handshake with an error.
        """
        try:
            yield
        except (TimeoutError, asyncio.TimeoutError) as error:
            limit_s = self.options.connect_timeout_s
            raise ConnectionFailed(self.shown, f"no answer within {limit_s:g} s") from error
        except InvalidStatus as error:
            refused = refusal(self.shown, error.response.status_code, error.response.body)
            raise self._told(refused) from error
        except (OSError, InvalidHandshake, InvalidURI, ImportError) as error:  # ImportError: a SOCKS proxy
            raise ConnectionFailed(self.shown, str(error) or type(error).__name__) from error

    def _told(self, refused: McpenvError) -> McpenvError:
        """Return the error, which says of a refused credential if there was one."""
        if isinstance(refused, Unauthorized) and AGENTS_TOKEN not in refused.message:
            sent = any(name.lower() == "authorization" for name, _ in self.headers)
            names = "" if may_have_token(self.url) else f"; {CONTROL_TOKEN_HOSTS} does not name this host"
            which = "the one that was sent is another" if sent else f"none was sent (token=, or {CONTROL_TOKEN}{names})"
            return Unauthorized(f"{refused.message}; {which}", **refused.data)
        return refused


def refusal(url: str, status: int, body: bytes | bytearray | None) -> McpenvError:
    """Return the error for a request that a server refused: by the ``code`` in the body, if there is one."""
    try:
        data = decode(bytes(body or b""))
    except ValueError:
        data = None
    if isinstance(data, dict) and isinstance(data.get("code"), str):
        return from_wire(data)
    if status == 401:
        return Unauthorized(f"{url} asks for a credential (HTTP 401)")
    if isinstance(data, dict) and isinstance(data.get("detail"), str):  # the refusal of OpenEnv's servers
        return ExecutionError(data["detail"]) if status == 500 else InvalidMessage(data["detail"])
    return ConnectionFailed(url, f"HTTP {status}")
