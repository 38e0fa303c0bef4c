"""One WebSocket to an environment: the thin shell around `wire` that does the I/O."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import os
import secrets
import warnings
import weakref
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import State

from .errors import (
    CapacityReached,
    ConnectionFailed,
    ExecutionError,
    FactoryError,
    InvalidJSON,
    InvalidMessage,
    McpenvError,
    SessionError,
    SessionLost,
    Unauthorized,
    UnsupportedVersion,
    from_wire,
)
from .values import decode
from .wire import PROTOCOL_VERSION, Reply, decode_reply

FAREWELL_S = 5.0
"""Seconds that a server may take to close a socket after it was asked to."""

_ENDS_THE_SESSION = (CapacityReached, FactoryError, SessionError, Unauthorized, UnsupportedVersion)
"""After these the server closes the socket."""

_ANSWERED_IN_PASSING = ("snapshot", "fork")
"""Answers of which the same refusals end nothing: there is no room for another snapshot, or another session."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a client connects and waits; all times in seconds."""

    connect_timeout_s: float = 10.0
    message_timeout_s: float = 330.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_message_bytes: int = 100 * 1024 * 1024
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Credential:
    """By which a session can be resumed after its socket was lost: an id, and a secret."""

    session_id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def headers(self) -> list[tuple[str, str]]:
        """For the handshake."""
        return [("Mcpenv-Session-Id", self.session_id), ("Mcpenv-Session-Token", self.token)]


def http_base(base_url: str, route: str = "/ws") -> str:
    """``base_url`` as http(s), without a trailing slash or ``route``.

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


def ws_url(base_url: str) -> str:
    """The address of the control socket under ``base_url``."""
    return "ws" + http_base(base_url).removeprefix("http") + f"/ws?protocol={PROTOCOL_VERSION}"


def without_password(url: str) -> str:
    """``url`` as it may stand in a message."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def is_loopback(url: str) -> bool:
    """Whether the host is this machine, which no proxy reaches."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_forks = itertools.count(1)
_process = 0
"""How often this process is a fork of that which imported this; to ask the system for its id costs a call of it."""


def _forked() -> None:
    global _process
    _process = next(_forks)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


class Owner:
    """The event loop and the process that a connection belongs to. Nobody else can use it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = _process

    @property
    def alive(self) -> bool:
        """Whether the loop still runs, here; from any thread."""
        return self._process == _process and not self._loop.is_closed()

    def why_not(self) -> str | None:
        """Why the connection is lost to the caller, or None if it is not.

        Raises:
            RuntimeError: the caller runs in another event loop while the owner's still runs.
        """
        if self._process != _process:
            return "the session belongs to the process that this one was forked from"
        if self._loop.is_closed():
            return "the event loop in which the session was opened has ended"
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a client is used in two event loops at once; make one client for each")
        return None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._loop

    def call_soon(self, callback: Any) -> None:
        """Call in the owner's loop if it still runs here, from any thread."""
        if self._process == _process:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(callback)


class _Waiting:
    """A caller whose reply has not come.

    Attributes:
        deadline: in the loop's time, which is ``limit_s`` seconds after it asked.
        wake: by which another that reads wakes it.
    """

    __slots__ = ("deadline", "limit_s", "reply", "wake")

    def __init__(self, deadline: float, limit_s: float) -> None:
        self.deadline = deadline
        self.limit_s = limit_s
        self.reply: Reply | None = None
        self.wake: asyncio.Future[None] | None = None

    def rouse(self) -> None:
        """Have it look at what came."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class Connection:
    """One socket, one message under way at a time, in the order in which callers came.

    A message whose reply did not come (a timeout, a lost socket, a cancelled caller) leaves the socket in a state that
    nobody can know, so the socket is closed and every later call is `SessionLost`. Messages with a ``request_id`` are
    told apart by it and take no turn.

    Attributes:
        protocol: the server's protocol version, once it has said it.
        interrupted: it ended by accident: a session with a credential may be resumed.
    """

    def __init__(self, socket: ClientConnection, url: str, options: ConnectionOptions) -> None:
        self._socket = socket
        self._url = url
        self._options = options
        self._owner = Owner()
        self._turn = asyncio.Lock()
        self._lost: str | None = None
        self._waiting: dict[str | None, list[_Waiting]] = {}
        self._reading = False
        self._timer: asyncio.TimerHandle | None = None
        self._late: str | None = None
        self.protocol: str | None = None
        self.interrupted = False

    @classmethod
    async def open(
        cls,
        base_url: str,
        options: ConnectionOptions,
        *,
        credential: Credential | None = None,
        resume: bool = False,
        session_id: str | None = None,
    ) -> Connection:
        """Connect.

        Args:
            base_url: the server.
            options: how.
            credential: by which the session can be resumed.
            resume: the session is there; do not begin another.
            session_id: a session that the server made, to be joined.

        Raises:
            ConnectionFailed: refused, unreachable, no WebSocket there, or not within ``connect_timeout_s``.
            WireError: the server refused the handshake and said why.
        """
        url = ws_url(base_url) + ("&resume=1" if resume else "")
        shown = without_password(url)
        if session_id is not None:
            url += f"&session_id={session_id}"  # a secret: not shown
        direct: dict[str, Any] = {"proxy": None} if is_loopback(url) else {}
        try:
            socket = await connect(
                url,
                open_timeout=options.connect_timeout_s,
                close_timeout=options.connect_timeout_s,
                ping_interval=options.ping_interval_s,
                ping_timeout=options.ping_timeout_s,
                max_size=options.max_message_bytes,
                additional_headers=[*options.headers, *(credential.headers() if credential is not None else ())],
                compression=None,
                **direct,
            )
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ConnectionFailed(shown, f"no answer within {options.connect_timeout_s:g} s") from error
        except InvalidStatus as error:
            raise refusal(shown, error.response.status_code, error.response.body) from error
        except (OSError, InvalidHandshake, InvalidURI, ImportError) as error:  # ImportError: a SOCKS proxy
            raise ConnectionFailed(shown, str(error) or type(error).__name__) from error
        return cls(socket, shown, options)

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked here."""
        return self._reason() is not None or self._socket.state is not State.OPEN

    async def exchange(
        self, text: str, answer: str, timeout_s: float | None = None, *, request_id: str | None = None
    ) -> Reply:
        """Send one frame and wait for its reply, at most ``timeout_s`` (default ``message_timeout_s``) seconds.

        Args:
            text: the frame.
            answer: the type of the reply.
            timeout_s: seconds.
            request_id: the frame's; its reply is told apart from others', so that it takes no turn, and a caller that
                is cancelled loses nothing but its answer.

        Raises:
            SessionLost: the socket ended, or no reply came in time.
            WireError: the reply is an error frame, or none of this protocol.
        """
        limit_s = self._options.message_timeout_s if timeout_s is None else timeout_s
        self._refuse_if_lost()
        if request_id is not None:
            return self._read(await self._ask(text, limit_s, request_id), answer)
        waits = self._turn.locked()
        async with self._turn:
            if waits:
                self._refuse_if_lost()
            return self._read(await self._ask(text, limit_s, None), answer)

    async def close(self, farewell: str) -> None:
        """Say ``farewell`` if nobody waits for a reply, and close the socket. Safe to call twice.

        The server closes it when the session has ended, which is waited for, but not for long: an environment may take
        its time. A call under way ends with `SessionLost`.
        """
        if self._reason() is not None:
            return
        silent = not self._turn.locked() and self._socket.state is State.OPEN
        self._lost = "the client was closed"
        if silent:
            with contextlib.suppress(ConnectionClosed, asyncio.TimeoutError, TimeoutError):
                await self._socket.send(farewell)
                await asyncio.wait_for(self._socket.wait_closed(), FAREWELL_S)
        await self._socket.close()

    def abandon(self) -> None:
        """Drop the socket without a word, from any thread."""
        if self._lost is None:
            self._lost = "the client was closed"
        self._owner.call_soon(self._socket.transport.abort)

    def __del__(self) -> None:
        # Nobody can close it any more, and the server would hold its environment as long as pings are answered.
        if self._lost is None and self._socket.state is State.OPEN and self._owner.alive:
            warnings.warn(f"a client of {self._url} was not closed", ResourceWarning, source=self, stacklevel=1)
            self.abandon()

    async def _ask(self, text: str, limit_s: float, request_id: str | None) -> Reply:
        waiting = _Waiting(self._owner.loop.time() + limit_s, limit_s)
        self._waiting.setdefault(request_id, []).append(waiting)
        self._watch(waiting.deadline)
        try:
            return await self._send_then_receive(text, waiting)
        except ConnectionClosed as error:
            if self._late is None:
                self.interrupted = True
                raise self._lose(f"the connection to {self._url} ended: {error}") from error
            raise SessionLost(self._late) from error
        except (InvalidJSON, InvalidMessage) as error:
            self._lose(error.message)
            raise
        except BaseException:
            if request_id is None:
                self._lose("a call was cancelled before its reply came")
            raise
        finally:
            others = self._waiting[request_id]
            others.remove(waiting)
            if not others:
                del self._waiting[request_id]

    async def _send_then_receive(self, text: str, waiting: _Waiting) -> Reply:
        closed: ConnectionClosed | None = None
        try:
            await self._socket.send(text)
        except ConnectionClosed as error:
            # The server may have said why before it closed (no capacity, say): that is still to be read, if another
            # who waits has not read it for all.
            closed = error
        while waiting.reply is None:
            if self._reading:
                waiting.wake = self._owner.loop.create_future()
                await waiting.wake
            else:
                await self._read_one()
        if closed is not None and waiting.reply.type != "error":
            raise closed
        return waiting.reply

    async def _read_one(self) -> None:
        """Receive one frame on behalf of all who wait, and give it to whom it answers."""
        self._reading = True
        try:
            self._give(decode_reply(await self._socket.recv()))
        finally:
            self._reading = False
            # Whoever has its reply goes; of the others, the first reads on.
            for others in self._waiting.values():
                for each in others:
                    each.rouse()

    def _give(self, reply: Reply) -> None:
        whom = self._waiting.get(reply.request_id, [])[:1]
        if not whom and reply.request_id is None and reply.type == "error":
            # Said of the session as a whole, before it closes.
            whom = [each for waiting in self._waiting.values() for each in waiting]
        for each in whom:
            each.reply = each.reply or reply

    def _watch(self, deadline: float) -> None:
        """Have one timer for all who wait, set again only when it fires: nearly all replies come long before."""
        if self._timer is None or deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            # Weakly, so that a client that nobody has any more does not live until then.
            self._timer = self._owner.loop.call_at(deadline, _expire, weakref.ref(self))

    def _check_deadlines(self) -> None:
        self._timer = None
        if self._lost is not None or not self._waiting:
            return
        first = min((each for waiting in self._waiting.values() for each in waiting), key=attrgetter("deadline"))
        if self._owner.loop.time() < first.deadline:
            self._watch(first.deadline)
            return
        self._late = f"no reply from {self._url} within {first.limit_s:g} s"
        self.interrupted = True
        self._lose(self._late)  # which wakes whoever sends or receives

    def _read(self, reply: Reply, answer: str) -> Reply:
        if reply.type not in (answer, "error"):
            said = f"the server answered with a frame of type {reply.type[:60]!r}, not {answer!r}"
            self._lose(said)
            raise InvalidMessage(said)
        if reply.protocol is not None:
            self.protocol = reply.protocol
        if reply.type == "error":
            refused = from_wire(reply.data)
            if isinstance(refused, _ENDS_THE_SESSION) and not (reply.request_id and answer in _ANSWERED_IN_PASSING):
                self._lose(refused.message)
            raise refused
        return reply

    def _reason(self) -> str | None:
        if self._lost is None:
            self._lost = self._owner.why_not()
        return self._lost

    def _refuse_if_lost(self) -> None:
        why = self._reason()
        if why is not None:
            raise SessionLost(why)

    def _lose(self, why: str) -> SessionLost:
        """Nothing more can be asked here."""
        if self._lost is None:
            self._lost = why
        self._socket.transport.abort()
        return SessionLost(self._lost)


def _expire(connection: weakref.ref[Connection]) -> None:
    alive = connection()
    if alive is not None:
        alive._check_deadlines()


def refusal(url: str, status: int, body: bytes | bytearray | None) -> McpenvError:
    """The error for a request that a server refused: of its code if the body names one."""
    try:
        data = decode(bytes(body or b""))
    except ValueError:
        data = None
    if isinstance(data, dict) and isinstance(data.get("code"), str):
        return from_wire(data)
    if status == 401:
        return Unauthorized(f"{url} asks for a credential (HTTP 401)")
    if isinstance(data, dict) and isinstance(data.get("detail"), str):  # as OpenEnv's servers refuse
        return ExecutionError(data["detail"]) if status == 500 else InvalidMessage(data["detail"])
    return ConnectionFailed(url, f"HTTP {status}")


__all__ = [
    "Connection",
    "ConnectionOptions",
    "Credential",
    "Owner",
    "http_base",
    "is_loopback",
    "refusal",
    "without_password",
    "ws_url",
]
