"""Rounds: what came on many sockets in one turn of the event loop is read in a row, and then all answers are written.

The kernel's code and the interpreter's displace each other from the processor's caches: thirty steps and then thirty
writes take a fifth less than thirty times a step and a write.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections import deque
from typing import Protocol

LONG_S = 0.001
"""Seconds after which a round writes what there is to write: an answer waits for no more of others' steps than that,
and the one that is under way then."""

WARY = 16
"""Reads of a socket that took long once, before each of which all that there is to write is written."""

FULL = 64
"""Sockets that wait for a round, with which it begins. With more, what has been read is no longer in the processor's
caches when it is served, and the first wait until the last have been read."""

TURN_S = 0.1
"""Seconds of a turn of the event loop after which no more rounds begin while it still reads: all else that is to run
waits for them."""

ALONE = 8
"""Rounds of one socket in a row after which the next are not begun: a turn of the event loop for nothing."""

LOOK_EVERY = 64
"""Of so many reads that are not in rounds, at least one is, to see whether others would be in it. Which, is left to
chance: sockets that come in the same order each time must not be looked at in the same place each time."""


class Socket(Protocol):
    """What reads in rounds.

    Attributes:
        loop: calls it.
        wary: how many reads ago it was read for more than `LONG_S`, counted down from `WARY`.
    """

    loop: asyncio.AbstractEventLoop
    wary: int

    def read_on(self) -> None:
        """Read what has come, if anything has, and answer."""
        ...

    def broke(self, error: Exception) -> None:
        """`read_on` or `write_out` raised."""
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

    __slots__ = (
        "_alone",
        "_context",
        "_look_in",
        "_playing",
        "_turn_began",
        "_waiting",
        "_written_at",
        "gathers",
        "owing",
    )

    def __init__(self) -> None:
        self._waiting: deque[Socket] = deque()
        self.owing: list[Socket] = []
        self._alone = 0
        self._look_in = 1
        self._written_at = 0.0
        self._turn_began: float | None = None  # None: nothing came in this turn of the event loop yet
        self._playing = False
        self._context = contextvars.Context()  # of no socket
        self.gathers = False

    def take(self, socket: Socket) -> bool:
        """Let a socket on which something came wait for the next round; False: it is to read at once."""
        waiting = self._waiting
        if self._turn_began is None:
            if self._alone >= ALONE:
                self._look_in -= 1
                if self._look_in:
                    return False
                self._look_in = random.randint(1, LOOK_EVERY)
            self._turn_began = time.perf_counter()
            socket.loop.call_soon(self._play_last, socket.loop, context=self._context)
        waiting.append(socket)
        if len(waiting) >= FULL and not self._playing and time.perf_counter() - self._turn_began < TURN_S:
            self._context.run(self._play, socket.loop)
        return True

    def write_if_late(self) -> None:
        """Write what there is to write, if it has waited long."""
        if time.perf_counter() - self._written_at > LONG_S:
            self._write()

    def _play_last(self, loop: asyncio.AbstractEventLoop) -> None:
        """The round that ends what came in a turn of the event loop."""
        self._turn_began = None
        if self._waiting:
            self._play(loop)

    def _play(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        self._playing, self.gathers = True, len(waiting) > 1
        self._alone = 0 if self.gathers else self._alone + 1
        before = self._written_at = time.perf_counter()
        try:
            while waiting:
                socket = waiting[0]
                if socket.wary and self.owing:
                    self._write()
                try:
                    type(socket).read_on(socket)  # of the class: or each is looked for in the socket's own dict first
                except Exception as error:  # noqa: BLE001 - of one socket; the others have their turn
                    socket.broke(error)
                waiting.popleft()
                now = time.perf_counter()
                if now - before > LONG_S:
                    socket.wary = WARY
                elif socket.wary:
                    socket.wary -= 1
                before = now
                if now - self._written_at > LONG_S:
                    self._write()
                    before = self._written_at
        finally:
            self._playing = self.gathers = False
            self._write()
            if waiting:  # the one that broke the round reads no more
                waiting.popleft()
                if waiting:
                    loop.call_soon(self._play_last, loop, context=self._context)

    def _write(self) -> None:
        owing, self.owing = self.owing, []
        for socket in owing:
            try:
                type(socket).write_out(socket)
            except Exception as error:  # noqa: BLE001 - of one socket; the others are written
                socket.broke(error)
        self._written_at = time.perf_counter()


__all__ = ["Rounds"]
