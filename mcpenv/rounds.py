"""Rounds: what came on many sockets in one turn of the event loop is read in a row, and then all answers are written.

The kernel's code and the interpreter's displace each other from the processor's caches: thirty steps and then thirty
writes take a fifth less than thirty times a step and a write.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from typing import Protocol

LONG_S = 0.001
"""Seconds after which a round writes what there is to write: nobody's answer waits for more of others' steps."""

ALONE = 8
"""Rounds of one socket in a row after which the next are not begun: a turn of the event loop for nothing."""

LOOK_EVERY = 64
"""Of the reads that are not in rounds, one is, to see whether others would be in it."""


class Socket(Protocol):
    """What reads in rounds.

    Attributes:
        loop: calls it.
        took_long: it was read for more than `LONG_S`, the last time.
    """

    loop: asyncio.AbstractEventLoop
    took_long: bool

    def read_on(self) -> None:
        """Read what has come, if anything has, and answer."""
        ...

    def broke(self, error: Exception) -> None:
        """`read_on` raised."""
        ...

    def write_out(self) -> None:
        """Write what is still to be written."""
        ...


class Rounds:
    """The rounds of one server.

    Attributes:
        gathers: a round is under way; who has something to write is to stand in `owing`, and waits for its end.
        owing: those who have.
    """

    __slots__ = ("_alone", "_context", "_look_in", "_waiting", "gathers", "owing")

    def __init__(self) -> None:
        self._waiting: deque[Socket] = deque()
        self.owing: list[Socket] = []
        self._alone = 0
        self._look_in = LOOK_EVERY
        self._context = contextvars.Context()  # of no socket
        self.gathers = False

    def take(self, socket: Socket) -> bool:
        """Let a socket on which something came wait for the next round; False: it is to read at once."""
        if not self._waiting:
            if self._alone >= ALONE:
                self._look_in -= 1
                if self._look_in:
                    return False
                self._look_in = LOOK_EVERY
            socket.loop.call_soon(self._play, socket.loop, context=self._context)
        self._waiting.append(socket)
        return True

    def _play(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        self.gathers = len(waiting) > 1
        self._alone = 0 if self.gathers else self._alone + 1
        written = before = time.perf_counter()
        try:
            while waiting:
                socket = waiting[0]
                if socket.took_long:
                    self._write()
                try:
                    socket.read_on()
                except Exception as error:  # noqa: BLE001 - of one socket; the others have their turn
                    socket.broke(error)
                waiting.popleft()
                now = time.perf_counter()
                socket.took_long = now - before > LONG_S
                if now - written > LONG_S:
                    self._write()
                    now = written = time.perf_counter()
                before = now
        finally:
            self.gathers = False
            self._write()
            if waiting:  # the one that broke the round reads no more
                waiting.popleft()
                if waiting:
                    loop.call_soon(self._play, loop, context=self._context)

    def _write(self) -> None:
        owing, self.owing = self.owing, []
        for socket in owing:
            socket.write_out()


__all__ = ["Rounds"]
