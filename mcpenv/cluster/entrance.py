"""Entrances: where connections come in. Each is accepted by the hub, looked at, and passed on to a worker whole.

A connection goes to the worker to which its first request belongs, so that whoever is at work in one worker does not
notice the end of another. What was looked at is not taken from the connection: the worker reads it again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable

from .belonging import Belonging, belonging_of

logger = logging.getLogger("mcpenv")

MAX_LOOK = 16 * 1024
"""Bytes of a connection that are looked at; what is not decided by them is decided by a worker."""

MAX_ACCEPTED = 64
"""Connections that are accepted before anything else has its turn."""


class Passage:
    """The way of connections to one worker: a Unix socket over which open files are sent.

    Args:
        path: where the worker listens.
        give_back: takes the connections that the worker was not given, because it is gone: door, connection, and where
            it belongs.

    Attributes:
        broken: the worker is gone.

    Raises:
        OSError: it does not.
    """

    def __init__(self, path: str, give_back: Callable[[int, socket.socket, Belonging], None]) -> None:
        self.broken = False
        self._give_back = give_back
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, socket.socket, Belonging]] = deque()

    def send(self, door: int, connection: socket.socket, belongs: Belonging) -> None:
        """Pass a connection on; it is closed here, or given back.

        Args:
            door: at which of the server's doors it came.
        """
        self._waiting.append((door, connection, belongs))
        if len(self._waiting) == 1:
            self._send()

    def close(self) -> None:
        """The worker is gone."""
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._break()

    def _break(self) -> None:
        self.broken = True
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            self._give_back(*each)

    def _send(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        while self._waiting:
            door, connection, _ = self._waiting[0]
            try:
                socket.send_fds(self._socket, [bytes([door])], [connection.fileno()])
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._send)
                return
            except OSError:  # the worker has just gone; that it has is heard elsewhere, later
                self._break()
                return
            self._waiting.popleft()
            connection.close()


class Entrance:
    """One door.

    Args:
        number: the door's.
        listening: a socket that listens.
        pass_on: given each connection, and where its first request belongs.
    """

    def __init__(
        self, number: int, listening: socket.socket, pass_on: Callable[[int, socket.socket, Belonging], None]
    ) -> None:
        self._number = number
        self._listening = listening
        self._pass_on = pass_on
        self._silent: dict[int, socket.socket] = {}
        self._loop = asyncio.get_running_loop()
        self._open = False

    def open(self) -> None:
        """Accept connections."""
        if not self._open:
            self._open = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def shut(self) -> None:
        """Accept no more; they wait outside."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listening.fileno())

    def close(self) -> None:
        """Accept no more, and close those that have not said anything."""
        self.shut()
        for number, connection in self._silent.items():
            self._loop.remove_reader(number)
            connection.close()
        self._silent.clear()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no more files, say
                logger.exception("a connection could not be accepted")
                self.shut()
                self._loop.call_later(1.0, self.open)
                return
            connection.setblocking(False)
            # Without it small replies wait 40 ms for the client's acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = connection.fileno()
            self._silent[number] = connection
            self._loop.add_reader(number, self._heard, number)

    def _heard(self, number: int) -> None:
        """A connection has said something, and be it goodbye."""
        connection = self._silent[number]
        try:
            head = connection.recv(MAX_LOOK, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            head = b""
        self._loop.remove_reader(number)
        del self._silent[number]
        if head:
            self._pass_on(self._number, connection, belonging_of(head))
        else:
            connection.close()


def receive_connection(passage: socket.socket) -> tuple[int, socket.socket] | None:
    """The next connection that the hub passes on, with the door's number; None when there is none now.

    Raises:
        EOFError: the hub is gone.
    """
    files: list[int] = []
    while not files:
        try:
            data, files, _, _ = socket.recv_fds(passage, 1, 1)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        if not files:
            logger.error("a connection is lost: this process has too many open files")
    connection = socket.socket(fileno=files[0])
    connection.setblocking(False)
    return data[0], connection
