"""One WebSocket to an environment, in an event loop: the thin shell around `wire` that does the I/O."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
import weakref
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from . import forks
from .exchanges import FAREWELL_S, Exchanges, Waiting
from .handshake import Handshake
from .loop_socket import LoopSocket
from .wire import Reply, decode_reply


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

    def call_soon(self, callback: Any) -> None:
        """Call in the owner's loop if it still runs here, from any thread."""
        if self._process == forks.number():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                self._loop.call_soon_threadsafe(callback)


class Connection(Exchanges):
    """One socket in an event loop."""

    def __init__(self, socket: LoopSocket, handshake: Handshake) -> None:
        super().__init__(handshake.shown, handshake.options)
        self._socket = socket
        self._owner = Owner()
        self._turn = asyncio.Lock()
        self._reading = False
        self._followers = 0
        self._timer: asyncio.TimerHandle | None = None

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
                create_connection=LoopSocket,
                **direct,
            )
        assert isinstance(socket, LoopSocket)
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
        waiting = self._expect(request_id, self._owner.loop.time(), limit_s)
        self._watch(waiting.deadline)
        try:
            return await self._send_then_receive(text, waiting)
        except BaseException as error:
            told = self._failed(waiting, error)
            if told is error:
                raise
            raise told from error
        finally:
            self._forget(waiting)

    async def _send_then_receive(self, text: str, waiting: Waiting) -> Reply:
        socket = self._socket
        closed: ConnectionClosed | None = None
        sending = socket.say(text)
        if sending is not None:
            try:
                await sending
            except ConnectionClosed as error:
                # The server may have said why before it closed (no capacity, say): that is still to be read, if another
                # who waits has not read it for all.
                closed = error
        while waiting.reply is None:
            if self._reading:
                await self._let_others_read(waiting)
                continue
            # One frame on behalf of all who wait, given to whom it answers. Not a coroutine of its own: with many
            # clients in a loop each costs 1 us.
            self._reading = True
            try:
                message: str | bytes | None = socket.taken()
                if message is None:
                    arrival = socket.arrival()
                    if arrival is not None:
                        await arrival
                        message = socket.taken()
                    if message is None:
                        message = await socket.receive()
                self._give(decode_reply(message))
            finally:
                self._reading = False
                if self._followers:
                    self._wake_followers()
        if closed is not None and waiting.reply.type != "error":
            raise closed
        return waiting.reply

    async def _let_others_read(self, waiting: Waiting) -> None:
        waiting.wake = self._owner.loop.create_future()
        self._followers += 1
        try:
            await waiting.wake
        finally:
            self._followers -= 1

    def _wake_followers(self) -> None:
        """Whoever has its reply goes; of the others, the first reads on."""
        for each in self._everybody():
            if each.wake is not None and not each.wake.done():
                each.wake.set_result(None)

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
        first = self._first_to_be_late()
        if self._owner.loop.time() < first.deadline:
            self._watch(first.deadline)
        else:
            self._is_late(first)  # which wakes whoever sends or receives

    def _reason(self) -> str | None:
        if self._lost is None:
            self._lost = self._owner.why_not()
        return self._lost

    def _abort(self) -> None:
        self._socket.transport.abort()


def _expire(connection: weakref.ref[Connection]) -> None:
    alive = connection()
    if alive is not None:
        alive._check_deadlines()


__all__ = ["Connection", "Owner"]
