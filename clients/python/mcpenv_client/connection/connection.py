"""One WebSocket to an environment: the thin shell around `wire` that does the I/O."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
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

from . import forks
from .handshake import Handshake

FAREWELL_S = 5.0
"""Seconds that a server may take to close a socket after it was asked to."""

_ENDS_THE_SESSION = (CapacityReached, FactoryError, SessionError, Unauthorized, UnsupportedVersion)
"""After these the server closes the socket."""

_MAY_BE_REFUSED = ("snapshot", "fork")
"""Answers of which the same refusals end nothing: there is no room for another snapshot, or another session."""


class Owner:
    """The event loop and the process that a connection belongs to. Nobody else can use it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = forks.number()

    @property
    def alive(self) -> bool:
        """Whether the loop still runs, here; from any thread."""
        return self._process == forks.number() and not self._loop.is_closed()

    def why_not(self) -> str | None:
        """Why the connection is lost to the caller, or None if it is not.

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
        """Call in the owner's loop if it still runs here, from any thread."""
        if self._process == forks.number():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(callback)


class _Waiting:
    """A caller whose reply has not come.

    Attributes:
        request_id: of its message.
        limit_s: seconds that it waits at most.
        reply: once it came.
        woken: set by the caller that reads, when it has read something or reads no more.
    """

    __slots__ = ("limit_s", "reply", "request_id", "woken")

    def __init__(self, request_id: str | None, limit_s: float) -> None:
        self.request_id = request_id
        self.limit_s = limit_s
        self.reply: Reply | None = None
        self.woken: asyncio.Future[None] | None = None


class Connection:
    """One socket in an event loop.

    Messages without a ``request_id`` are exchanged one at a time, in the order in which callers came. One whose reply
    did not come (a timeout, a lost socket, a cancelled caller) leaves the socket in an unknown state, so the socket is
    closed and every later call is `SessionLost`. Messages with a ``request_id`` are told apart by it and wait for no
    other. Of the callers that wait, one receives for all.

    Attributes:
        protocol: the server's protocol version, once it has said it.
        interrupted: it ended by accident: a session with a credential may be resumed.
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
        self.interrupted = False

    @classmethod
    async def open(cls, handshake: Handshake) -> Connection:
        """Connect.

        Raises:
            ConnectionFailed: refused, unreachable, no WebSocket there, or not within ``connect_timeout_s``.
            WireError: the server refused the handshake and said why.
        """
        options = handshake.options
        direct: dict[str, Any] = {"proxy": None} if handshake.is_local else {}
        with handshake.explained():
            socket = await connect(
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
        return cls(socket, handshake)

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
            request_id: the frame's; its reply is told apart from others', so that it waits for no other, and a caller
                that is cancelled loses nothing but its answer.

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
        """Send ``farewell`` if nobody waits for a reply, and close the socket. Safe to call twice.

        The server closes it when the session has ended, which is waited for, but not for long: an environment may take
        its time. A call in flight ends with `SessionLost`.
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

    def __del__(self) -> None:
        # Nobody can close it any more, and the server would hold its environment as long as pings are answered.
        if self._lost is None and self._socket.state is State.OPEN and self._owner.alive:
            warnings.warn(f"a client of {self._url} was not closed", ResourceWarning, source=self, stacklevel=1)
            self._owner.call_soon(self._socket.transport.abort)

    # -- one message

    async def _ask(self, text: str, limit_s: float, request_id: str | None) -> Reply:
        waiting = _Waiting(request_id, limit_s)
        self._waiting.append(waiting)
        timer = self._owner.loop.call_later(limit_s, self._expire, waiting)
        try:
            return await self._send_then_receive(text, waiting)
        except BaseException as error:
            told = self._failed(waiting, error)
            if told is error:
                raise
            raise told from error
        finally:
            timer.cancel()
            self._waiting.remove(waiting)

    async def _send_then_receive(self, text: str, waiting: _Waiting) -> Reply:
        closed: ConnectionClosed | None = None
        try:
            await self._socket.send(text)
        except ConnectionClosed as error:
            # The server may have said why before it closed (no capacity, say): that is still to be read, if another
            # caller has not read it for all.
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
        """Receive one frame on behalf of all callers, and wake them: the first without its reply reads on."""
        self._reading = True
        try:
            self._give(decode_reply(await self._socket.recv()))
        finally:
            self._reading = False
            for each in self._waiting:
                if each.woken is not None and not each.woken.done():
                    each.woken.set_result(None)

    def _give(self, reply: Reply) -> None:
        """Give a reply to the caller that it answers."""
        unanswered = [each for each in self._waiting if each.reply is None]
        callers = [each for each in unanswered if each.request_id == reply.request_id][:1]
        if not callers and reply.request_id is None and reply.type == "error":
            callers = unanswered  # said of the session as a whole, before it closes
        for each in callers:
            each.reply = reply

    def _expire(self, waiting: _Waiting) -> None:
        """Give the connection up, because this reply did not come in time. Ends every send and receive."""
        if waiting.reply is None and self._lost is None:
            self._late = f"no reply from {self._url} within {waiting.limit_s:g} s"
            self.interrupted = True
            self._lose(self._late)

    def _failed(self, waiting: _Waiting, error: BaseException) -> BaseException:
        """Decide what a failed message means for the session; return what its caller is told, maybe the same error."""
        if isinstance(error, ConnectionClosed):
            if self._late is not None:
                return SessionLost(self._late)
            if self._lost is None:
                self.interrupted = True
            return self._lose(f"the connection to {self._url} ended: {error}")
        if isinstance(error, InvalidJSON | InvalidMessage):
            self._lose(error.message)
        elif waiting.request_id is None:
            self._lose("a call was cancelled before its reply came")
        return error

    def _read(self, reply: Reply, answer: str) -> Reply:
        """Return the reply.

        Raises:
            WireError: the server refused, or the reply is not an ``answer``.
        """
        if reply.type not in (answer, "error"):
            said = f"the server answered with a frame of type {reply.type[:60]!r}, not {answer!r}"
            self._lose(said)
            raise InvalidMessage(said)
        if reply.protocol is not None:
            self.protocol = reply.protocol
        if reply.type == "error":
            refused = from_wire(reply.data)
            if isinstance(refused, _ENDS_THE_SESSION) and not (reply.request_id and answer in _MAY_BE_REFUSED):
                self._lose(refused.message)
            raise refused
        return reply

    # -- the end

    def _refuse_if_lost(self) -> None:
        why = self._reason()
        if why is not None:
            raise SessionLost(why)

    def _reason(self) -> str | None:
        """Why nothing can be asked here, if so."""
        if self._lost is None:
            self._lost = self._owner.why_not()
        return self._lost

    def _lose(self, why: str) -> SessionLost:
        """Drop the socket; nothing more can be asked here."""
        if self._lost is None:
            self._lost = why
        self._abort()
        return SessionLost(self._lost)

    def _abort(self) -> None:
        self._socket.transport.abort()


__all__ = ["Connection", "Owner"]
