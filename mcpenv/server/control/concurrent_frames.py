"""Urgent frames of ``/ws``: ``wait``, ``trajectory`` and ``cancel`` are answered beside the frame in work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcpenv.failures import wire_error
from mcpenv.server.sessions.operations import A_FRAME, Operation, Wait, error_text, operation_of
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import RateLimited, WireError
from mcpenv_client.wire.protocol import Frame, encode_reply

MAX_UNSENT = 16
"""Answers that may wait to be sent; with more, the socket is not read."""

MAX_UNDER_WAY = 256
"""Urgent frames in work above which a ``wait`` is refused."""


Text = str | Callable[[], str]
"""An answer, or what makes it: one that may be long is made when it can be sent."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        frame: None if it could not be read.
        request_id: named in its answer.
        text: the frame as it came, if it has a request id.
        error: why it could not be read.
        answer: kept until the answers to the frames before it have been sent.
    """

    frame: Frame | None
    request_id: str | None
    text: str | None = None
    error: WireError | None = None
    answer: Text | None = None


class Gone(Exception):
    """The client has left, or another socket has taken the session over."""


class UrgentFrames:
    """The urgent frames of one connection, each answered in a task of its own.

    Args:
        reply: sends an answer in its order; raises `Gone` if the client has left.
    """

    def __init__(self, reply: Callable[[Arrival, Text], Awaitable[None]]) -> None:
        self._reply = reply
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent = 0
        self._room: asyncio.Future[None] | None = None

    def serve(self, session: Session, arrival: Arrival) -> None:
        """Start answering a frame."""
        assert arrival.frame is not None
        waits = False
        try:
            # A wait is for the episode that runs as it arrives, also if a reset is served before its task begins.
            operation = operation_of(session, arrival.frame)
            waits = isinstance(operation, Wait)
            if waits and len(self._tasks) >= MAX_UNDER_WAY:
                raise RateLimited(f"{MAX_UNDER_WAY} frames of this session wait already; no more are taken")
        except WireError as error:
            waits, work = False, self._send(arrival, error_text(error, arrival.request_id))
        else:
            work = self._answer(arrival, session, operation, waits)
        self._unsent += not waits
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def crowded(self) -> bool:
        """True if no frame should be read until there is `room`."""
        return self._unsent >= MAX_UNSENT

    async def room(self) -> None:
        """Return when fewer answers wait to be sent."""
        while self.crowded:
            if self._room is None or self._room.done():
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._room})

    def cancel(self) -> None:
        """Cancel all frames in work: the client has left."""
        for task in self._tasks:
            task.cancel()
        self._reply = _nobody  # breaks the cycle with its connection

    async def _answer(self, arrival: Arrival, session: Session, operation: Operation, waits: bool) -> None:
        try:
            text = await _text_of(session, operation, arrival.request_id)
        except asyncio.CancelledError:
            if not waits:
                self._is_sent()
            raise
        self._unsent += waits
        await self._send(arrival, text)

    async def _send(self, arrival: Arrival, text: Text) -> None:
        try:
            await self._reply(arrival, text)
        except Gone:
            return
        finally:
            self._is_sent()

    def _is_sent(self) -> None:
        self._unsent -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def _text_of(session: Session, operation: Operation, request_id: str | None) -> Text:
    """Answer an urgent frame, with a result or with an error."""
    try:
        result = await operation.run(session)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, A_FRAME), request_id)
    encode = partial(_encoded, operation, result, request_id)
    return encode() if operation.brief else encode


def _encoded(operation: Operation, result: Any, request_id: str | None) -> str:
    try:
        return encode_reply(operation.reply, operation.reply_data(result), request_id)
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return error_text(wire_error(error, A_FRAME), request_id)


async def _nobody(arrival: Arrival, answer: Text) -> None:
    raise Gone
