"""One WebSocket to an environment whose callers wait in threads."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections import deque
from functools import partial

from websockets.exceptions import ConnectionClosed

from . import forks, handlers, porters
from .blocking_socket import Attempt, BlockingSocket
from .exchanges import FAREWELL_S, Exchanges, Waiting
from .handshake import Handshake
from .keeper import keep
from .wire import Reply, decode_reply

LOOK_UP_S = 0.5
"""Seconds after which who waits for a reply sees that it was given up."""

PUSH_S = 0.05
"""Seconds for which a message that the system does not take waits for it, before it is seen whether somebody reads."""


class Turns:
    """A lock that is had in the order in which it was asked for.

    A `threading.Lock` goes to whoever asks when it is free: a thread that takes it again at once starves the others.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[threading.Lock] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody has it."""
        return bool(self._queue)

    def ask(self) -> tuple[threading.Lock, bool]:
        """A ticket, to `wait` with and to `leave`, and whether it is had at once."""
        ticket = threading.Lock()
        ticket.acquire()
        with self._mutex:
            self._queue.append(ticket)
            return ticket, self._queue[0] is ticket

    def wait(self, ticket: threading.Lock) -> None:
        """Until it is had, or until `wake`."""
        ticket.acquire()

    def wake(self, ticket: threading.Lock) -> None:
        """Have the one who waits with this ticket look up."""
        with contextlib.suppress(RuntimeError):  # it has looked up
            ticket.release()

    def leave(self, ticket: threading.Lock) -> None:
        """Give it back, or wait for it no more."""
        with self._mutex:
            had_it = self._queue[0] is ticket
            self._queue.remove(ticket)
            if had_it and self._queue:
                self.wake(self._queue[0])


class BlockingConnection(Exchanges):
    """One socket for threads. Its coroutines wait for no event loop: the thread that calls drives them.

    The main thread asks with handlers of signals held back. It goes on in a porter when one of them is due, and where
    it would wait for another thread.
    """

    def __init__(self, sock: BlockingSocket, handshake: Handshake) -> None:
        super().__init__(handshake.shown, handshake.options)
        self._socket = sock
        self._process = forks.number()
        self._turns = Turns()
        self._state = threading.RLock()
        self._changed = threading.Condition(self._state)
        self._followers = 0
        self._reader: object | None = None
        keep(self)

    @classmethod
    async def open(cls, handshake: Handshake) -> BlockingConnection:
        """Connect, without a proxy; see `Handshake.explained`."""
        attempt, job = Attempt(), await porters.in_a_porter()
        if job is not None:
            job.on_cancel(attempt.give_up)
        with handshake.explained():
            sock = BlockingSocket.connect(handshake, attempt)
        return cls(sock, handshake)

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked here."""
        if self._reason() is not None:
            return True
        self._look()
        return not self._socket.is_open

    async def exchange(
        self, text: str, answer: str, timeout_s: float | None = None, *, request_id: str | None = None
    ) -> Reply:
        """Send one frame and wait for its reply: as `Connection.exchange`, from any thread."""
        limit_s = self._options.message_timeout_s if timeout_s is None else timeout_s
        job = porters.current()
        if job is not None:
            job.on_cancel(None)  # nothing is sent for nobody
        holds = job is None and handlers.hold_back()
        try:
            self._refuse_if_lost()
            if request_id is not None:
                return self._read(await self._ask(text, limit_s, request_id, holds), answer)
            ticket, is_had = self._turns.ask()
            try:
                if not is_had:
                    await self._wait_for_the_turn(ticket, holds)
                return self._read(await self._ask(text, limit_s, None, holds), answer)
            finally:
                self._turns.leave(ticket)
        finally:
            if holds and porters.current() is None:
                handlers.let_go()

    async def close(self, farewell: str) -> None:
        """Say ``farewell`` if nobody waits for a reply, and close the socket: as `Connection.close`."""
        await porters.in_a_porter()
        if self._reason() is not None:
            return
        silent = not self._turns.taken and self._socket.is_open
        self._lost = "the client was closed"
        try:
            if silent:
                self._socket.send(farewell)
                with contextlib.suppress(TimeoutError):
                    self._read_to_the_end(time.monotonic() + FAREWELL_S)
            self._socket.begin_close()
            self._read_to_the_end(time.monotonic() + self._options.connect_timeout_s)
        except (ConnectionClosed, TimeoutError):
            return  # it has ended, or is ended now
        finally:
            self._abort()

    def abandon(self) -> None:
        """Drop the socket without a word, from any thread."""
        if self._lost is None:
            self._lost = "the client was closed"
        self._abort()

    def tend(self, passed_s: float) -> bool:
        """Answer pings if nobody reads, and send them; without waiting. Whether there is more to come.

        Args:
            passed_s: seconds since the last time in which this process ran.
        """
        if self._process != forks.number():
            return False
        self._look()
        self._socket.keep_alive(passed_s)
        return not self._socket.is_cut

    def __del__(self) -> None:
        if self._process != forks.number():
            self._socket.leave()
            return
        try:
            # Nobody can close it any more, and the server would hold its environment as long as pings are answered.
            if self._lost is None and self._socket.is_open:
                warnings.warn(f"a client of {self._url} was not closed", ResourceWarning, source=self, stacklevel=1)
        finally:
            self.abandon()

    async def _wait_for_the_turn(self, ticket: threading.Lock, holds: bool) -> None:
        job = await porters.in_a_porter(holds=holds)
        if job is not None:
            job.on_cancel(partial(self._turns.wake, ticket))
        self._turns.wait(ticket)
        if job is not None:
            job.on_cancel(None)
        self._refuse_if_lost()

    async def _ask(self, text: str, limit_s: float, request_id: str | None, holds: bool) -> Reply:
        with self._state:
            waiting = self._expect(request_id, time.monotonic(), limit_s)
        try:
            return await self._send_then_receive(text, waiting, holds)
        except TimeoutError as error:
            job = porters.current()
            if waiting.given_up or (request_id is not None and job is not None and porters.is_forgotten(job)):
                raise porters.Abandoned from error
            raise self._is_late(waiting) from error
        except BaseException as error:
            told = self._failed(waiting, error)
            if told is error:
                raise
            raise told from error
        finally:
            with self._state:
                self._forget(waiting)
            job = porters.current()
            if job is not None:
                job.on_cancel(None)

    def _give_up(self, waiting: Waiting) -> None:
        """Nobody wants this reply any more. If it is the next, whatever it is, nobody can tell what is the next."""
        if waiting.request_id is None:
            self._lose("a call was cancelled before its reply came")
        else:
            with self._changed:
                waiting.given_up = True
                self._changed.notify_all()

    async def _send_then_receive(self, text: str, waiting: Waiting, holds: bool) -> Reply:
        closed: ConnectionClosed | None = None
        message = 0
        job = porters.current()
        if job is not None:
            job.on_cancel(partial(self._give_up, waiting))
        look_up_s = LOOK_UP_S if holds or job is not None else math.inf
        try:
            message = self._socket.send(text)
        except ConnectionClosed as error:
            # The server may have said why before it closed (no capacity, say): that is still to be read, if another
            # who waits has not read it for all.
            closed = error
        while waiting.reply is None:
            if self._become_reader(waiting):
                try:
                    self._read_one(waiting, look_up_s)
                except handlers.Due:
                    await self._go_on_in_a_porter(waiting, holds)
                continue
            await self._go_on_in_a_porter(waiting, holds)
            if self._socket.is_written(message):
                self._let_others_read(waiting)
            else:
                self._push(waiting)
        if closed is not None and waiting.reply.type != "error":
            raise closed
        return waiting.reply

    async def _go_on_in_a_porter(self, waiting: Waiting, holds: bool) -> None:
        job = await porters.in_a_porter(holds=holds)
        if job is not None:
            job.on_cancel(partial(self._give_up, waiting))

    def _read_one(self, waiting: Waiting, look_up_s: float) -> None:
        """Receive one frame on behalf of all who wait, and give it to whom it answers. For the reader."""
        try:
            reply = decode_reply(self._receive(waiting, look_up_s))
            with self._state:
                self._give(reply)
        finally:
            self._read_no_more()

    def _receive(self, waiting: Waiting, look_up_s: float) -> str | bytes:
        """The next message, whosever it is.

        Raises:
            ConnectionClosed: the connection has ended.
            TimeoutError: this caller's time is over, or nobody wants its reply any more.
            Due: a handler of a signal is to be run.
        """
        while True:
            now = time.monotonic()
            until = min(waiting.deadline, now + look_up_s)
            try:
                return self._socket.receive(until)
            except TimeoutError:
                if waiting.given_up or until == waiting.deadline:
                    raise

    def _push(self, waiting: Waiting) -> None:
        """Write on, while another reads; not for long, for if that one ends, somebody has to read.

        Raises:
            TimeoutError: this caller's time is over, or nobody wants its reply any more.
        """
        now = time.monotonic()
        if waiting.given_up or now >= waiting.deadline:
            raise TimeoutError
        self._socket.push(min(waiting.deadline, now + PUSH_S))

    def _become_reader(self, who: object) -> bool:
        with self._state:
            if self._reader is not None:
                return False
            self._reader = who
            return True

    def _read_no_more(self) -> None:
        with self._state:
            self._reader = None
            if self._followers:
                # Whoever has its reply goes; of the others, the first reads on.
                self._changed.notify_all()

    def _let_others_read(self, waiting: Waiting) -> None:
        """Wait until the reply came, or until nobody reads any more.

        Raises:
            TimeoutError: neither came in time.
            Abandoned: nobody wants the reply.
        """
        with self._changed:
            while waiting.reply is None and self._reader is not None:
                if waiting.given_up:
                    raise porters.Abandoned
                if not self._wait_for_change(waiting.deadline):
                    raise TimeoutError

    def _wait_for_change(self, deadline: float) -> bool:
        """Until a reader has gone, or a reply is given up; whether that was in time."""
        self._followers += 1
        try:
            return self._changed.wait(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
        finally:
            self._followers -= 1

    def _look(self) -> None:
        """Read what came, if nobody reads; without waiting."""
        if self._become_reader(self):
            try:
                self._socket.tend()
            finally:
                self._read_no_more()

    def _read_to_the_end(self, deadline: float) -> None:
        """Until the server has closed its end.

        Raises:
            ConnectionClosed: it has.
            TimeoutError: it has not, in time.
        """
        while True:
            with self._changed:
                while not self._become_reader(self):
                    if not self._wait_for_change(deadline):
                        raise TimeoutError
            try:
                self._socket.receive(deadline)
            finally:
                self._read_no_more()

    def _reason(self) -> str | None:
        if self._lost is None and self._process != forks.number():
            self._lost = forks.LOST
        return self._lost

    def _abort(self) -> None:
        if self._process == forks.number():
            self._socket.cut()
        else:
            self._socket.leave()


__all__ = ["BlockingConnection"]
