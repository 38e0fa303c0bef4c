"""A WebSocket in an event loop: that of the ``websockets`` package, with less between a message and who waits for it.

Its `send` is a context manager of a generator, its `recv` three coroutines above a queue: with a thousand clients in a
loop, as much as what a step is otherwise. Here a text that comes whole while somebody waits goes to who waits, and one
that needs not wait is written. All the rest is as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import State

_OF_MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class LoopSocket(ClientConnection):
    """A control socket. One task at a time receives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiter: asyncio.Future[None] | None = None
        self._message: str | None = None
        # What went the way of the package: whole messages that are still to be received there, and whether one has
        # begun that is not whole.
        self._behind = 0
        self._in_fragments = False
        self._gone = False

    def say(self, text: str) -> Awaitable[None] | None:
        """Send a message; gives what is to be awaited, if anything.

        Raises (where it is awaited):
            ConnectionClosed: the connection has ended.
        """
        if self.protocol.state is not State.OPEN or self.transport.is_closing():
            return self.send(text)
        self.protocol.send_text(text.encode())
        self.send_data()
        return self._drained() if self.paused else None

    def taken(self) -> str | None:
        """The next message, if it is here."""
        message, self._message = self._message, None
        return message

    def arrival(self) -> asyncio.Future[None] | None:
        """What is done when the next message may be here; None if it is to be received in any case.

        If `taken` gives none then, it is a matter of `receive`.
        """
        if self._behind or self._in_fragments or self._gone:
            return None
        self._waiter = waiter = self.loop.create_future()
        return waiter

    async def receive(self) -> str | bytes:
        """The next message, where `arrival` gave none, or gave nothing.

        Raises:
            ConnectionClosed: the connection has ended.
        """
        message = await self.recv()
        self._behind -= 1
        return message

    # -- what the package calls

    def process_event(self, event: Any) -> None:
        """What came: the answer to the handshake, or a frame."""
        waiter = self._waiter
        if waiter is not None and _is_whole_text(event):
            try:
                self._message = bytes(event.data).decode()
            except UnicodeDecodeError:
                pass  # which ends the connection where it is received
            else:
                self._wake(waiter)
                return
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode in _OF_MESSAGES:
            self._in_fragments = not event.fin
            self._behind += event.fin
            if waiter is not None:
                self._wake(waiter)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        super().connection_lost(exc)
        self._gone = True
        if self._waiter is not None:
            self._wake(self._waiter)

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = None
        if not waiter.done():
            waiter.set_result(None)

    async def _drained(self) -> None:
        try:
            await self.drain()
        except Exception as error:
            await self.wait_closed()
            raise self.close_exc from error


def _is_whole_text(event: Any) -> bool:
    return isinstance(event, Frame) and event.opcode is Opcode.TEXT and event.fin


__all__ = ["LoopSocket"]
