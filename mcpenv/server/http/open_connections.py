"""The open connections of a server: limited in number, and in the bytes of requests that are not whole yet.

A connection without a running request costs its client nothing, so a few thousand of them must not use up the files of
this process. Above a limit, a new connection closes the one that has waited longest for its client. The same is true of
connections that only listen: event streams, to which clients return by themselves, and WebSockets that are not used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from mcpenv.server.metrics.counters import CONNECTIONS_CLOSED, CONNECTIONS_REFUSED, Counters
from mcpenv_client.errors import CapacityReached

from .file_limits import RESERVED, ROOM_S, ClosedForRoom

logger = logging.getLogger("mcpenv")

UNFINISHED_BODIES = 64
"""The size of all unfinished bodies and frames together, as a multiple of the largest body."""

FULL = "all connections are in use"
REFUSAL = CapacityReached(FULL, retry_after_s=1.0).to_wire()
"""The reason of a full server's refusals, and their data."""

PROBES = (b"/health", b"/ready", b"/capacity", b"/metrics")
"""How the paths of requests end that a full server still answers."""

HEAD_S = 1.0
"""Seconds that a new connection has for its first request before others are kept rather than this one."""

USED: Final = "mcpenv.websocket.used"
"""The type of the message by which an application says that a WebSocket must not be closed to make room.

It is offered as an extension of ASGI."""


class OpenConnection(Protocol):
    """A connection that can be closed to make room."""

    def drop(self) -> None:
        """Close the connection at once."""


class OpenConnections:
    """The open connections of all listening sockets of a process.

    Args:
        most: maximum number of connections.
        most_bytes: maximum bytes of unfinished bodies and frames.

    Attributes:
        counters: count the connections that are closed for room, and those that are `refused`.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self.counters = Counters()
        self._most_bytes = most_bytes
        self._number = 0
        # Ordered by age, the silent ones with the time when they were opened. Those in `_idle` have sent a whole
        # request before, those in `_listening` wait for an event or for the first message of a WebSocket.
        self._silent: dict[OpenConnection, float] = {}
        self._idle: dict[OpenConnection, None] = {}
        self._listening: dict[OpenConnection, None] = {}
        self._unfinished: dict[OpenConnection, int] = {}
        self._bytes = 0
        self._for_room = ClosedForRoom()
        self._told = False

    def full(self, asking: int = 0) -> bool:
        """Return True if so many connections are in use, besides ``asking``, that only probes are answered; log it."""
        waiting = asking + len(self._silent) + len(self._idle) + len(self._listening)
        full = self._number - waiting >= self.most - min(RESERVED, self.most // 4)
        if full and not self._told:
            self._told = True
            logger.warning("%s, and all requests but probes are refused; raise its limit of files (ulimit -n)", FULL)
            self._tell_room()
        return full

    def _tell_room(self) -> None:
        if self.full():
            asyncio.get_running_loop().call_later(ROOM_S, self._tell_room)
        else:
            self._told = False
            logger.warning("connections are free again, and requests are accepted")

    def refused(self) -> None:
        """Count a request or WebSocket that is refused because the server is `full`."""
        self.counters.numbers[CONNECTIONS_REFUSED] += 1

    def opened(self, connection: OpenConnection) -> None:
        """Add a connection. At the limit, close the one that has waited longest, if any waits."""
        self._number += 1
        self._silent[connection] = time.monotonic()
        if self._number > self.most:
            longest, since = next(iter(self._silent.items()))
            if time.monotonic() - since < HEAD_S:
                # It may be about to send its request, as may the new connection, which is the last to be closed.
                longest = next(iter(self._idle or self._listening or self._silent))
            self.answering(longest)
            longest.drop()
            self._for_room.add()
            self.counters.numbers[CONNECTIONS_CLOSED] += 1

    def closed(self, connection: OpenConnection) -> None:
        """Remove a connection."""
        self._number -= 1
        self.answering(connection)
        self.finished(connection)

    def answering(self, connection: OpenConnection) -> None:
        """Exempt a connection while its request is answered, or for good if it is a WebSocket that is used."""
        for waiting in (self._silent, self._idle, self._listening):
            waiting.pop(connection, None)

    def idle(self, connection: OpenConnection) -> None:
        """Note that a connection waits for its next request."""
        self._listening.pop(connection, None)
        self._idle[connection] = None

    def listening(self, connection: OpenConnection) -> None:
        """Note that a connection has become an event stream or a WebSocket."""
        self._listening[connection] = None

    def unfinished(self, connection: OpenConnection, size: int) -> None:
        """Note the bytes of an unfinished body or frame. Above the limit, drop the connection with the oldest one."""
        self._bytes += size - self._unfinished.get(connection, 0)
        self._unfinished[connection] = size
        while self._bytes > self._most_bytes:
            oldest = next(iter(self._unfinished))
            self.finished(oldest)
            oldest.drop()

    def finished(self, connection: OpenConnection) -> None:
        """Note that a body or frame is whole, or that its connection is closed. Idempotent."""
        self._bytes -= self._unfinished.pop(connection, 0)
