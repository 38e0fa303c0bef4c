"""Acceptors: the hub accepts connections, peeks at the first request and passes the connection to a worker.

A connection goes to the worker to which its first request belongs, so that clients of one worker are not affected by
the end of another. Peeked bytes stay in the socket, and the worker reads them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable

from mcpenv.server.http.file_limits import ClosedForRoom, connections_allowed
from mcpenv.server.uvicorn_server import KEEP_ALIVE_S

from .routing import ANYBODY, Destination, destination_of_head

logger = logging.getLogger("mcpenv")

MAX_LOOK = 16 * 1024
"""Maximum bytes of a connection to peek at. If they do not decide the routing, a worker does."""

MAX_ACCEPTED = 64
"""Maximum connections to accept in one run of the event loop's callback."""


class ConnectionSender:
    """The hub's end of the socket over which connections are sent to one worker as open file descriptors.

    Args:
        end: the socket.
        far_end: the worker's end, from which the hub takes back what the worker has not received.
        give_back: called with each connection that the worker has not received: its door, and the connection.

    Attributes:
        broken: True once the worker has disconnected.
    """

    def __init__(
        self, end: socket.socket, far_end: socket.socket, give_back: Callable[[int, socket.socket], None]
    ) -> None:
        end.setblocking(False)
        far_end.setblocking(False)
        self.broken = False
        self._give_back = give_back
        self._socket = end
        self._far_end = far_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, socket.socket]] = deque()

    def send(self, door: int, connection: socket.socket) -> None:
        """Send a connection to the worker, queued if the socket is full, and close it here.

        Args:
            door: the number of the listening socket that accepted it.
        """
        self._waiting.append((door, connection))
        if len(self._waiting) == 1:
            self._send()

    def close(self) -> None:
        """Close the socket, and give back what was not received. Idempotent."""
        if self.broken:
            return
        self.broken = True
        self.take_back()
        self._socket.close()
        self._far_end.close()

    def take_back(self) -> None:
        """Give back the connections that the worker has not received."""
        self._loop.remove_writer(self._socket.fileno())
        unreceived: list[tuple[int, socket.socket]] = []
        with contextlib.suppress(EOFError, OSError):
            while (sent := receive_connection(self._far_end)) is not None:
                unreceived.append(sent)
        unreceived.extend(self._waiting)
        self._waiting.clear()
        for door, connection in unreceived:
            self._give_back(door, connection)

    def _send(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        while self._waiting:
            door, connection = self._waiting[0]
            try:
                socket.send_fds(self._socket, [bytes([door])], [connection.fileno()])
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._send)
                return
            except OSError:  # the worker has disconnected; its channel reports that later
                self.close()
                return
            self._waiting.popleft()
            connection.close()


class Acceptor:
    """The acceptor of one door: a listening socket of the server.

    Args:
        number: the door's number.
        listening: the listening socket.
        pass_on: called with the door's number, each connection, and the worker that its first request belongs to.

    Attributes:
        closed: the number of connections that were closed to make room for new ones.
    """

    def __init__(
        self, number: int, listening: socket.socket, pass_on: Callable[[int, socket.socket, Destination], None]
    ) -> None:
        self._number = number
        self._listening = listening
        self._pass_on = pass_on
        self._silent: dict[int, tuple[socket.socket, asyncio.TimerHandle]] = {}
        self._most_silent = connections_allowed() // 2
        self._for_room = ClosedForRoom()
        self.closed = 0
        self._loop = asyncio.get_running_loop()
        self._open = False

    def open(self) -> None:
        """Start accepting connections."""
        if not self._open:
            self._open = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def shut(self) -> None:
        """Stop accepting connections; new ones wait in the socket's backlog."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listening.fileno())

    def close(self) -> None:
        """Stop accepting connections, and close those that have sent nothing yet."""
        self.shut()
        for number in list(self._silent):
            self._drop(number)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # for example, too many open files
                logger.exception("a connection could not be accepted")
                self.shut()
                self._loop.call_later(1.0, self.open)
                return
            connection.setblocking(False)
            # Without TCP_NODELAY, small replies wait 40 ms for the client's acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = connection.fileno()
            self._silent[number] = connection, self._loop.call_later(KEEP_ALIVE_S, self._drop, number)
            self._loop.add_reader(number, self._readable, number)
            if len(self._silent) > self._most_silent:
                self._drop(next(iter(self._silent)))
                self._for_room.add()
                self.closed += 1

    def _drop(self, number: int) -> None:
        """Close a connection that has sent nothing."""
        self._loop.remove_reader(number)
        connection, timer = self._silent.pop(number)
        timer.cancel()
        connection.close()

    def _readable(self, number: int) -> None:
        """Pass on a connection that has sent its first bytes; close one that has disconnected."""
        connection, timer = self._silent[number]
        try:
            head = connection.recv(MAX_LOOK, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            head = b""
        self._loop.remove_reader(number)
        del self._silent[number]
        timer.cancel()
        if head:
            self._pass_on(self._number, connection, destination_of_head(head))
        else:
            connection.close()


def destination_of(connection: socket.socket) -> Destination:
    """Return the worker that the first request of a connection belongs to, from what has come of it."""
    try:
        return destination_of_head(connection.recv(MAX_LOOK, socket.MSG_PEEK))
    except OSError:
        return ANYBODY


def receive_connection(connections: socket.socket) -> tuple[int, socket.socket] | None:
    """Return the next connection from the hub, with the door's number; None if none is ready.

    Raises:
        EOFError: the hub has disconnected.
    """
    files: list[int] = []
    while not files:
        try:
            data, files, _, _ = socket.recv_fds(connections, 1, 1)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        if not files:
            logger.error("a connection is lost: this process has too many open files")
    connection = socket.socket(fileno=files[0])
    connection.setblocking(False)
    return data[0], connection
