"""A WebSocket that is read and written by the threads that use it, without a thread or an event loop behind it.

The protocol is the ``websockets`` package's own, in the form that leaves reading and writing to others. Its blocking
client has two threads and four files for each socket, and a message wakes one thread that wakes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Frame, Opcode
from websockets.http11 import USER_AGENT, Response
from websockets.protocol import Event, State
from websockets.uri import parse_uri

from . import handlers
from .handshake import Handshake
from .shared_loop import SHARED_LOOP

CHUNK = 64 * 1024
"""Bytes that are read at once."""

MAX_UNREAD = 16
"""Messages that nobody waits for, after which no more are read."""

_LONGEST_S = 86_400.0
"""Seconds that the system is asked to wait at once."""

_READ, _WRITE = 1, 2

_READS_TO_TEND = 4
"""How often an idle connection is read in a row: a server that floods it has no more of the shared loop."""

_OF_MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_OK = (1000, 1001)
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Attempt:
    """A connection that is being made."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._sock: socket.socket | None = None
        self._over = False

    def goes_on_with(self, sock: socket.socket) -> None:
        """By this socket, now.

        Raises:
            OSError: it is given up.
        """
        with self._mutex:
            if self._over:
                raise ConnectionAbortedError("given up")
            self._sock = sock

    def give_up(self) -> None:
        """From another thread: nobody wants it any more."""
        with self._mutex:
            self._over = True
            if self._sock is not None:
                with contextlib.suppress(OSError):  # it is not connected yet, or not any more
                    # Not an `SSLSocket`'s own, which would drop what its handshake is made with.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class BlockingSocket:
    """A control socket.

    Any number of threads may send; one at a time receives. While nobody receives, `tend` has to be called now and then,
    to answer pings. Where handlers of signals run, they are to be held back: what one raises would leave halves.

    Args:
        sock: connected, with the handshake done.
        protocol: in the state after the handshake.
        handshake: how it was asked for.
    """

    def __init__(self, sock: socket.socket, protocol: ClientProtocol, handshake: Handshake) -> None:
        self._sock = sock
        self._protocol = protocol
        self._options = handshake.options
        self._mutex = threading.RLock()
        self._to_write: deque[memoryview] = deque()
        self._queued = self._written = 0
        self._write_after_read = False
        self._unread: deque[str | bytes] = deque()
        self._fragments: list[bytes] = []
        self._is_text = True
        self._until_readable, self._until_ready = _waiter(sock, _READ), _waiter(sock, _READ | _WRITE)
        self._waiters = 0
        self._cut = False
        self._close_by = math.inf
        self._ping: bytes | None = None
        self._pings = 0
        self._since_ping_s = 0.0

    @classmethod
    def connect(cls, handshake: Handshake, attempt: Attempt) -> BlockingSocket:
        """Connect, without a proxy.

        Args:
            handshake: what is said.
            attempt: by which another thread can end it.

        Raises:
            OSError, TimeoutError, InvalidHandshake, InvalidURI: see `Handshake.explained`.
        """
        deadline = time.monotonic() + handshake.options.connect_timeout_s
        uri = parse_uri(handshake.url)
        sock = _connected(uri.host, uri.port, deadline, attempt, is_local=handshake.is_local)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if uri.secure:
                sock.settimeout(_timeout(deadline))
                encrypted = ssl.create_default_context().wrap_socket(
                    sock, server_hostname=uri.host, do_handshake_on_connect=False
                )
                attempt.goes_on_with(encrypted)
                sock = encrypted
                encrypted.do_handshake()
            protocol = ClientProtocol(uri, max_size=handshake.options.max_message_bytes)
            request = protocol.connect()
            for name, value in handshake.headers:
                request.headers[name] = value
            request.headers.setdefault("User-Agent", USER_AGENT)
            protocol.send_request(request)
            sock.settimeout(_timeout(deadline))
            sock.sendall(b"".join(protocol.data_to_send()))
            events: list[Event] = []
            while not events and protocol.handshake_exc is None:
                sock.settimeout(_timeout(deadline))
                data = sock.recv(CHUNK)
                if data:
                    protocol.receive_data(data)
                else:
                    protocol.receive_eof()
                events = protocol.events_received()
            if protocol.handshake_exc is not None:
                raise protocol.handshake_exc
            assert isinstance(events[0], Response)
            sock.setblocking(False)
            opened = cls(sock, protocol, handshake)
            opened._digest(events[1:])  # said together with the answer to the handshake
            opened._flush()
            return opened
        except BaseException:
            sock.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return not self._cut and self._protocol.state is State.OPEN

    @property
    def is_cut(self) -> bool:
        """Whether it has ended at both ends."""
        return self._cut

    def send(self, text: str) -> int:
        """Send one message, as far as the system takes it at once; the rest is written by who receives, or `push`es.

        Returns:
            What `is_written` is to be asked.

        Raises:
            ConnectionClosed: the connection has ended.
        """
        data = text.encode()
        with self._mutex:
            if not self.is_open:
                raise self._closed()
            self._protocol.send_text(data)
            self._queue()
            self._flush()
            return self._queued

    def is_written(self, message: int) -> bool:
        """Whether nothing is left to be written of the message, or nothing can be written any more."""
        return self._written >= message

    def push(self, deadline: float) -> None:
        """Write more, as soon as the system takes it; while another thread receives."""
        self._wait(_waiter(self._sock, _READ if self._write_after_read else _WRITE), deadline)
        with self._mutex:
            self._flush()

    def receive(self, deadline: float) -> str | bytes:
        """The next message. One thread at a time.

        Raises:
            ConnectionClosed: the connection has ended, and all that came was received.
            TimeoutError: none came in time.
            Due: a handler of a signal is to be run.
        """
        while not self._unread:
            if self._cut:
                raise self._closed()
            until = min(deadline, self._close_by)
            writes = self._to_write and not self._write_after_read
            self._wait(self._until_ready if writes else self._until_readable, until)
            self._take()
            if not self._unread and not _left(until):
                if until == deadline:
                    raise TimeoutError
                self.cut()  # the server did not close its end
        return self._unread.popleft()

    def tend(self) -> None:
        """Read what came without waiting, and answer pings; in the place of one who receives."""
        for _ in range(_READS_TO_TEND):
            if len(self._unread) >= MAX_UNREAD or not self._take():
                break
        if time.monotonic() >= self._close_by:
            self.cut()

    def keep_alive(self, passed_s: float) -> None:
        """Send pings when it is time, and end the connection if one is not answered. From any thread, without waiting.

        Args:
            passed_s: seconds since the last time in which this process ran.
        """
        interval_s, timeout_s = self._options.ping_interval_s, self._options.ping_timeout_s
        if interval_s is None or not self.is_open:
            return
        self._since_ping_s += passed_s
        with self._mutex:
            if self._ping is None:
                if self._since_ping_s < interval_s or not self.is_open:
                    return
                self._pings, self._since_ping_s = self._pings + 1, 0.0
                self._ping = self._pings.to_bytes(4, "big")
                self._protocol.send_ping(self._ping)
            elif timeout_s is None or self._since_ping_s < timeout_s or not self.is_open:
                return
            else:
                self._protocol.fail(1011, "keepalive ping timeout")
            self._queue()
            self._flush()
        if self._protocol.state is not State.OPEN:
            self.cut()

    def begin_close(self) -> None:
        """Say that the connection is to end; the server's end of it is yet to be received."""
        with self._mutex:
            if self.is_open:
                self._protocol.send_close(1000)
                self._queue()
                self._flush()

    def cut(self) -> None:
        """End the connection without a word, from any thread."""
        with self._mutex:
            if not self._cut:
                self._cut = True
                self._write_no_more()
                with contextlib.suppress(OSError):  # it is not connected any more
                    self._sock.shutdown(socket.SHUT_RDWR)  # who waits wakes
                self._close_if_unused()

    def leave(self) -> None:
        """In a fork of the process that uses it: let go of it, without a word to the server."""
        self._sock.close()

    # -- bytes

    def _take(self) -> bool:
        """Read what is there and sort it, and write what is to be written; whether anything was read."""
        with self._mutex:
            if self._cut:
                return False
            try:
                data = self._sock.recv(CHUNK)
            except _NOT_NOW:
                self._flush()
                return False
            except OSError:
                data = b""
            self._write_after_read = False
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._digest(self._protocol.events_received())
            if self._protocol.state is State.CLOSED:
                self.cut()
            elif self._to_write:
                self._flush()
        return True

    def _digest(self, events: list[Event]) -> None:
        """Sort what came, and queue what is to be answered to it."""
        for frame in events:
            assert isinstance(frame, Frame)
            if frame.opcode in _OF_MESSAGES:
                if frame.opcode is not Opcode.CONT:
                    self._is_text = frame.opcode is Opcode.TEXT
                self._fragments.append(bytes(frame.data))
                if frame.fin:
                    self._keep_message()
            elif frame.opcode is Opcode.PONG and bytes(frame.data) == self._ping:
                self._ping = None
        self._queue()
        if self._close_by == math.inf and self._protocol.close_expected():
            self._close_by = time.monotonic() + self._options.connect_timeout_s

    def _keep_message(self) -> None:
        data = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
        self._fragments.clear()
        try:
            self._unread.append(data.decode() if self._is_text else data)
        except UnicodeDecodeError as error:
            if self.is_open:
                self._protocol.fail(1007, f"{error.reason} at position {error.start}")

    def _queue(self) -> None:
        """Have what the protocol has to say written next. With the mutex."""
        data = b"".join(self._protocol.data_to_send())  # an empty one, to end the stream, is of no use here
        if data:
            self._to_write.append(memoryview(data))
            self._queued += len(data)

    def _flush(self) -> None:
        """Write what the system takes at once. With the mutex."""
        while self._to_write:
            chunk = self._to_write[0]
            try:
                sent = self._sock.send(chunk)
            except ssl.SSLWantReadError:
                self._write_after_read = True
                return
            except _NOT_NOW:
                return
            except OSError:
                self._write_no_more()  # what the server said before it went is still to be read
                return
            self._written += sent
            if sent < len(chunk):
                self._to_write[0] = chunk[sent:]
            else:
                self._to_write.popleft()

    def _write_no_more(self) -> None:
        self._to_write.clear()
        self._written = self._queued

    def _wait(self, ready: Callable[[int], object], deadline: float) -> None:
        """Wait for what is to be done next, or until the deadline."""
        with self._mutex:
            if self._cut or self._has_decrypted():
                return
            self._waiters += 1
        try:
            milliseconds = math.ceil(min(_left(deadline), _LONGEST_S) * 1000)
            if handlers.are_held():
                handlers.wait(ready, milliseconds)
            else:
                ready(milliseconds)
        finally:
            with self._mutex:
                self._waiters -= 1
                self._close_if_unused()

    def _has_decrypted(self) -> bool:
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def _close_if_unused(self) -> None:
        # Not before: its number could be another file's by the time that somebody waits for it.
        if self._cut and not self._waiters:
            self._sock.close()

    def _closed(self) -> ConnectionClosed:
        """How it ended."""
        protocol = self._protocol
        received, sent = protocol.close_rcvd, protocol.close_sent
        fine = received is not None and sent is not None and received.code in _OK and sent.code in _OK
        error = (ConnectionClosedOK if fine else ConnectionClosedError)(received, sent, protocol.close_rcvd_then_sent)
        error.__cause__ = protocol.parser_exc
        return error


def _left(deadline: float) -> float:
    """Seconds until a deadline."""
    return max(deadline - time.monotonic(), 0.0)


def _timeout(deadline: float) -> float:
    """The same for a socket, to which none means something else.

    Raises:
        TimeoutError: there are none.
    """
    left = _left(deadline)
    if not left:
        raise TimeoutError
    return min(left, _LONGEST_S)


def _connected(host: str, port: int, deadline: float, attempt: Attempt, *, is_local: bool) -> socket.socket:
    """A socket to the first of a host's addresses that answers.

    Raises:
        OSError: none does, or the name is unknown.
        TimeoutError: nothing came of it in time.
    """
    refused: OSError | None = None
    for family, kind, number, _, address in _addresses(host, port, deadline, is_local=is_local):
        sock = socket.socket(family, kind, number)
        try:
            sock.settimeout(_timeout(deadline))
            attempt.goes_on_with(sock)
            sock.connect(address)
            return sock
        except TimeoutError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            refused = refused or error
        except BaseException:
            sock.close()
            raise
    raise refused or OSError(f"{host} has no address")


def _addresses(host: str, port: int, deadline: float, *, is_local: bool) -> list[Any]:
    if is_local or SHARED_LOOP.is_here:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    # To look up a name may take any time, which only another thread can limit.
    async def look_up() -> list[Any]:
        addresses = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return await asyncio.wait_for(addresses, _timeout(deadline))

    return SHARED_LOOP.run(look_up())


def _waiter(sock: socket.socket, what: int) -> Callable[[int], object]:
    """A function that waits so many milliseconds for a socket to be ready. For one thread at a time."""
    number = sock.fileno()
    if not hasattr(select, "poll"):  # Windows
        reads, writes = [number] if what & _READ else [], [number] if what & _WRITE else []
        return lambda milliseconds: select.select(reads, writes, [], milliseconds / 1000)
    poll = select.poll()
    poll.register(number, (select.POLLIN if what & _READ else 0) | (select.POLLOUT if what & _WRITE else 0))
    return poll.poll


__all__ = ["Attempt", "BlockingSocket"]
