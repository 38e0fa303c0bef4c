"""The handshake of a client with a server: options, request, and refusals."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from mcpenv_client.errors import ConnectionFailed, ExecutionError, InvalidMessage, McpenvError, Unauthorized, from_wire
from mcpenv_client.types.values import decode

from .addresses import is_loopback, without_password, ws_url


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The options with which a client connects and waits. All times are in seconds."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float = 330.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: tuple[tuple[str, str], ...] = ()


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
        headers = [*options.headers, *(credential.headers() if credential is not None else ())]
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
            raise refusal(self.shown, error.response.status_code, error.response.body) from error
        except (OSError, InvalidHandshake, InvalidURI, ImportError) as error:  # ImportError: a SOCKS proxy
            raise ConnectionFailed(self.shown, str(error) or type(error).__name__) from error


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
