"""The WebSocket to an environment: the I/O around the protocol of `wire`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.exceptions import InvalidMessage as NoAnswer
from websockets.protocol import State

from mcpenv_client.errors import (
    CapacityReached,
    FactoryError,
    InvalidJSON,
    InvalidMessage,
    SessionError,
    SessionLost,
    Unauthorized,
    UnsupportedVersion,
    from_wire,
)
from mcpenv_client.wire.protocol import Reply, decode_reply
from mcpenv_client.wire.version import PROTOCOL_HEADER, check_server_version

from . import forks
from .handshake import Handshake

_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})

FAREWELL_S = 5.0
"""Maximum seconds that a server may take to close a socket after a close frame."""

_ENDS_THE_SESSION = (CapacityReached, FactoryError, SessionError, Unauthorized, UnsupportedVersion)
"""Errors after which the server closes the socket."""

_MAY_BE_REFUSED = ("snapshot", "fork")
"""Requests that may fail with one of these errors without ending the session: there is no room for another snapshot or
session."""


class Owner:
    """The event loop and the process that a connection belongs to. No other loop or process can use it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = forks.number()

    @property
    def alive(self) -> bool:
        """True if the loop still runs in this process. May be read from any thread."""
        return self._process == forks.number() and not self._loop.is_closed()

    def why_not(self) -> str | None:
        """Return why the connection is lost to the caller, or None if it is usable.

        Raises:
            RuntimeError: the caller runs in another event loop while the owner's still runs.
        """
        if self._process != forks.number():
            return forks.LOST
        if self._loop.is_closed():
            return "the event loop in which the session was opened has ended"
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a client is used in two event loops at once; make one client for each")
        return None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        return self._loop

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call in the owner's loop from any thread, if that loop still runs in this process."""
        if self._process == forks.number():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(callback)


class _Waiting:
    """A caller that waits for its reply.

    Attributes:
        request_id: the id of its message.
        limit_s: maximum seconds to wait.
        reply: the reply; None until it arrives.
        woken: set by the reading caller when it has read a frame or stops reading.
    """

    __slots__ = ("limit_s", "reply", "request_id", "woken")

    def __init__(self, request_id: str | None, limit_s: float) -> None:
        self.request_id = request_id
        self.limit_s = limit_s
        self.reply: Reply | None = None
        self.woken: asyncio.Future[None] | None = None


class _Connect(connect):
    """`connect`, which follows redirects to another origin without credentials; websockets 15 sends them there."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        found = super().process_redirect(exc)
        if isinstance(found, str) and urlsplit(found)[:2] != urlsplit(self.uri)[:2]:
            headers = Headers(self.additional_headers or ()).raw_items()
            self.additional_headers = [header for header in headers if header[0].lower() not in _CREDENTIALS]
        return found


async def _connected(handshake: Handshake) -> ClientConnection:
    options = handshake.options
    direct: dict[str, Any] = {"proxy": None} if handshake.is_local else {}
    return await _Connect(
        handshake.url,
        open_timeout=options.connect_timeout_s,
        close_timeout=options.connect_timeout_s,
        ping_interval=options.ping_interval_s,
        ping_timeout=options.ping_timeout_s,
        max_size=options.max_message_bytes,
        additional_headers=handshake.headers,
        compression=None,
        **direct,
    )


class Connection:
    """The socket of one session, in one event loop.

    Messages without a ``request_id`` are exchanged one at a time, in the order of the calls. If the reply to one does
    not arrive (a timeout, a lost socket, a cancelled caller), the state of the socket is unknown. Then the socket is
    closed, and every later call raises `SessionLost`. Messages with a ``request_id`` are matched by it and do not wait
    for others. One of the waiting callers reads the socket for all of them.

    Attributes:
        protocol: the server's protocol version; None until the server has sent it.
        interrupted: True if the socket was lost by accident. A session with a credential may be resumed.
        busy: True if the server had no room for the session, or not yet.
    """

    def __init__(self, socket: ClientConnection, handshake: Handshake) -> None:
        self._socket = socket
        self._url = handshake.shown
        self._options = handshake.options
        self._owner = Owner()
        self._lock = asyncio.Lock()
        self._reading = False
        self._lost: str | None = None
        self._late: str | None = None
        self._waiting: list[_Waiting] = []
        self.protocol: str | None = None
        self.interrupted = self.busy = False

    @classmethod
    async def open(cls, handshake: Handshake) -> Connection:
        """Connect; once more if the connection is taken and then cut: the process that took it may have been killed.

        Raises:
            ConnectionFailed: the connection was refused, the server is unreachable or no WebSocket server, or
                ``connect_timeout_s`` passed.
            WireError: the server refused the handshake with an error, or speaks another protocol version.
        """
        with handshake.explained():
            try:
                socket = await _connected(handshake)
            except (NoAnswer, ConnectionResetError):
                socket = await _connected(handshake)
        connection = cls(socket, handshake)
        if socket.response is not None:
            connection.accept_version(socket.response.headers.get(PROTOCOL_HEADER))
        return connection

    def accept_version(self, said: str | None) -> None:
        """Keep the server's protocol version. Do nothing if the server has not named one, as OpenEnv's do not.

        Raises:
            UnsupportedVersion: this client does not speak it; the socket is dropped.
        """
        if said is None:
            return
        try:
            check_server_version(said)
        except UnsupportedVersion as refused:
            self._lose(refused.message)
            raise
        self.protocol = said

    @property
    def ended(self) -> bool:
        """True if messages can no longer be sent here."""
        return self._reason() is not None or self._socket.state is not State.OPEN

    @property
    def cut(self) -> bool:
        """True if the socket has ended, and nothing that the server or this client has said did that."""
        return self.interrupted or (self._lost is None and self._socket.state is not State.OPEN)

    async def exchange(
        self, text: str, answer: str, timeout_s: float | None = None, *, request_id: str | None = None
    ) -> Reply:
        """Send one frame and return its reply. Wait at most ``timeout_s`` (default ``message_timeout_s``) seconds.

        Args:
            text: the frame.
            answer: the type of the reply.
            timeout_s: maximum seconds to wait for the reply.
            request_id: the id in the frame, if any. The reply is matched by it, so the message waits for no other one,
                and cancelling the caller loses only the answer.

        Raises:
            SessionLost: the socket ended, or no reply came in time.
            WireError: the reply is an error frame, or none of this protocol.
        """
        limit_s = self._options.message_timeout_s if timeout_s is None else timeout_s
        self._refuse_if_lost()
        if request_id is not None:
            return self._read(await self._ask(text, limit_s, request_id), answer)
        async with self._lock:
            self._refuse_if_lost()
            return self._read(await self._ask(text, limit_s, None), answer)

    async def close(self, farewell: str) -> None:
        """Send ``farewell`` if no caller waits for a reply, and close the socket. Safe to call twice.

        Waits until the server has ended the session and closes the socket, but only for a limited time, because an
        environment's close may be slow. A running call raises `SessionLost`.
        """
        if self._reason() is not None:
            return
        silent = not self._lock.locked() and self._socket.state is State.OPEN
        self._lost = "the client was closed"
        if silent:
            with contextlib.suppress(ConnectionClosed, asyncio.TimeoutError, TimeoutError):
                await self._socket.send(farewell)
                await asyncio.wait_for(self._socket.wait_closed(), FAREWELL_S)
        await self._socket.close()

    def abandon(self) -> None:
        """Drop the socket without a closing handshake, from any thread."""
        if self._lost is None:
            self._lost = "the client was closed"
        self._owner.call_soon(self._abort)

    def __del__(
        self,
        warn: Callable[..., None] = warnings.warn,
        opened: State = State.OPEN,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        # The names are bound early, because the interpreter empties modules at its end.
        if self._lost is not None or self._socket.state is not opened or self._owner.loop.is_closed():
            return
        if is_finalizing():  # the end of the process closes the socket
            warn(f"a client of {self._url} was not closed", ResourceWarning, source=self, stacklevel=1)
        elif self._owner.alive:
            # The server would keep its environment for as long as pings are answered.
            warn(f"a client of {self._url} was not closed", ResourceWarning, source=self, stacklevel=1)
            self._owner.call_soon(self._socket.transport.abort)

    # -- one message

    async def _ask(self, text: str, limit_s: float, request_id: str | None) -> Reply:
        waiting = _Waiting(request_id, limit_s)
        self._waiting.append(waiting)
        timer = self._owner.loop.call_later(limit_s, self._expire, waiting)
        try:
            return await self._send_then_receive(text, waiting)
        except BaseException as error:
            raised = self._failed(waiting, error)
            if raised is error:
                raise
            raise raised from error
        finally:
            timer.cancel()
            self._waiting.remove(waiting)

    async def _send_then_receive(self, text: str, waiting: _Waiting) -> Reply:
        closed: ConnectionClosed | None = None
        try:
            await self._socket.send(text)
        except ConnectionClosed as error:
            # The server may have sent the reason before it closed (no capacity, for example). Read it, unless another
            # caller already has.
            closed = error
        while waiting.reply is None:
            if self._reading:
                waiting.woken = self._owner.loop.create_future()
                await waiting.woken
            else:
                await self._read_one()
        if closed is not None and waiting.reply.type != "error":
            raise closed
        return waiting.reply

    async def _read_one(self) -> None:
        """Receive one frame on behalf of all callers. Then wake the first caller without a reply, which reads on."""
        self._reading = True
        try:
            self._give(decode_reply(await self._socket.recv()))
        finally:
            self._reading = False
            for each in self._waiting:
                if each.woken is not None and not each.woken.done():
                    each.woken.set_result(None)

    def _give(self, reply: Reply) -> None:
        """Give a reply to the caller that waits for it."""
        unanswered = [each for each in self._waiting if each.reply is None]
        callers = [each for each in unanswered if each.request_id == reply.request_id][:1]
        if not callers and reply.request_id is None and reply.type == "error":
            callers = unanswered  # an error of the whole session, before it closes
        for each in callers:
            each.reply = reply

    def _expire(self, waiting: _Waiting) -> None:
        """Close the connection because this reply timed out. Ends every send and receive."""
        if waiting.reply is None and self._lost is None:
            self._late = f"no reply from {self._url} within {waiting.limit_s:g} s"
            self.interrupted = True
            self._lose(self._late)

    def _failed(self, waiting: _Waiting, error: BaseException) -> BaseException:
        """Decide if a failed message ends the session. Return the error for its caller."""
        if isinstance(error, ConnectionClosed):
            if self._late is not None:
                return SessionLost(self._late)
            if self._lost is None:
                self.interrupted = True
            return self._lose(f"the connection to {self._url} ended: {error.rcvd or error}")
        if isinstance(error, InvalidJSON | InvalidMessage):
            self._lose(error.message)
        elif waiting.request_id is None:
            self._lose("a call was cancelled before its reply came")
        return error

    def _read(self, reply: Reply, answer: str) -> Reply:
        """Return the reply.

        Raises:
            WireError: the server answered with an error, or the reply is not of the type ``answer``.
        """
        self.accept_version(reply.protocol)  # the first reply repeats it, for proxies that drop headers
        if reply.type not in (answer, "error"):
            problem = f"the server answered with a frame of type {reply.type[:60]!r}, not {answer!r}"
            self._lose(problem)
            raise InvalidMessage(problem)
        if reply.type == "error":
            refused = from_wire(reply.data)
            if isinstance(refused, _ENDS_THE_SESSION) and not (reply.request_id and answer in _MAY_BE_REFUSED):
                self._lose(refused.message)
                self.busy = isinstance(refused, CapacityReached)
            raise refused
        return reply

    # -- the end

    def _refuse_if_lost(self) -> None:
        why = self._reason()
        if why is not None:
            raise SessionLost(why)

    def _reason(self) -> str | None:
        """Return the error for further messages; None if the connection is usable."""
        if self._lost is None:
            self._lost = self._owner.why_not()
        return self._lost

    def _lose(self, why: str) -> SessionLost:
        """Drop the socket. Messages can no longer be sent here."""
        if self._lost is None:
            self._lost = why
        self._abort()
        return SessionLost(self._lost)

    def _abort(self) -> None:
        self._socket.transport.abort()
