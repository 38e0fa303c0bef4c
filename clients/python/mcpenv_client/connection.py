"""One WebSocket to an environment: the thin shell around `wire` that does the I/O."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from .errors import ConnectionFailed, SessionLost, UnsupportedVersion, from_wire
from .wire import PROTOCOL_VERSION, Reply, decode_reply


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a client connects and waits; all times in seconds."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float = 330.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: tuple[tuple[str, str], ...] = ()


def http_base(base_url: str) -> str:
    """``base_url`` as http(s), without a trailing slash or ``/ws``.

    Raises:
        ValueError: not an http, https, ws or wss URL with a host.
    """
    parts = urlsplit(base_url)
    scheme = {"ws": "http", "wss": "https", "http": "http", "https": "https"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(f"base_url {base_url!r} is not an http(s):// or ws(s):// URL")
    path = parts.path.rstrip("/").removesuffix("/ws").rstrip("/")
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def ws_url(base_url: str) -> str:
    """The address of the control socket under ``base_url``."""
    return "ws" + http_base(base_url).removeprefix("http") + f"/ws?protocol={PROTOCOL_VERSION}"


class Connection:
    """One socket, one message under way at a time, in the order in which callers came.

    A message whose reply did not come (a timeout, a lost socket, a cancelled caller) leaves the socket in a state that
    nobody can know, so the socket is closed and every later call is `SessionLost`.
    """

    def __init__(self, socket: ClientConnection, url: str, options: ConnectionOptions) -> None:
        self._socket = socket
        self._url = url
        self._options = options
        self._turn = asyncio.Lock()
        self._lost: str | None = None
        self.protocol: str | None = None

    @classmethod
    async def open(cls, base_url: str, options: ConnectionOptions) -> Connection:
        """Connect.

        Raises:
            ConnectionFailed: refused, unreachable, no WebSocket there, or not within ``connect_timeout_s``.
        """
        url = ws_url(base_url)
        try:
            socket = await connect(
                url,
                open_timeout=options.connect_timeout_s,
                ping_interval=options.ping_interval_s,
                ping_timeout=options.ping_timeout_s,
                max_size=options.max_message_bytes,
                additional_headers=list(options.headers),
                compression=None,
            )
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ConnectionFailed(url, f"no answer within {options.connect_timeout_s:g} s") from error
        except (OSError, InvalidHandshake, InvalidURI) as error:
            raise ConnectionFailed(url, str(error)) from error
        return cls(socket, url, options)

    @property
    def lost(self) -> str | None:
        """Why the session is gone, or None while the socket is good."""
        return self._lost

    async def exchange(self, text: str, timeout_s: float | None = None) -> Reply:
        """Send one frame and wait for its reply, at most ``timeout_s`` (default ``message_timeout_s``) seconds.

        Raises:
            SessionLost: the socket ended, or no reply came in time.
            WireError: the reply is an error frame.
        """
        limit = self._options.message_timeout_s if timeout_s is None else timeout_s
        async with self._turn:
            if self._lost is not None:
                raise SessionLost(self._lost)
            answered = False
            try:
                raw = await self._send_and_receive(text, limit)
                answered = True
            except (TimeoutError, asyncio.TimeoutError) as error:
                raise self._lose(f"no reply from {self._url} within {limit:g} s") from error
            except ConnectionClosed as error:
                raise self._lose(f"the connection to {self._url} ended: {error}") from error
            finally:
                if not answered and self._lost is None:
                    self._lose("a call was cancelled before its reply came")
                if not answered:
                    self._socket.transport.abort()
            reply = decode_reply(raw)
        if reply.protocol is not None:
            self.protocol = reply.protocol
        if reply.type == "error":
            error = from_wire(reply.data)
            if isinstance(error, UnsupportedVersion):
                self._lose(error.message)
            raise error
        return reply

    async def _send_and_receive(self, text: str, limit_s: float) -> str | bytes:
        if sys.version_info < (3, 11):
            await self._socket.send(text)
            return await asyncio.wait_for(self._socket.recv(), limit_s)
        async with asyncio.timeout(limit_s):
            await self._socket.send(text)
            return await self._socket.recv()

    async def close(self, farewell: str | None = None) -> None:
        """Say ``farewell`` if the socket is good, and close it. Safe to call twice."""
        if self._lost is None and farewell is not None:
            try:
                async with self._turn:
                    await self._socket.send(farewell)
            except ConnectionClosed:
                pass
        self._lose("the client was closed")
        await self._socket.close()

    def _lose(self, why: str) -> SessionLost:
        if self._lost is None:
            self._lost = why
        return SessionLost(why)
