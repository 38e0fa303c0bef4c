"""The connection of one client on ``/ws``: frames in, one session, frames out.

The frames ``wait``, ``trajectory`` and ``cancel`` are served at once, also during a step. All others run in order of
arrival. Answers to frames without a ``request_id`` keep the frames' order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from starlette.types import Receive, Send

from mcpenv.server.http.body import too_large
from mcpenv.server.http.open_connections import USED
from mcpenv.server.sessions.idempotency import Answer
from mcpenv.server.sessions.operations import answer, answer_traced, cancelled_answer, error_text
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import CapacityReached, InvalidJSON, InvalidMessage, ReplyGone, Unauthorized, WireError
from mcpenv_client.types.values import MAX_PARTS
from mcpenv_client.wire.protocol import Frame, FrameType, decode_frame, request_id_of

from .concurrent_frames import Arrival, Gone, Text, UrgentFrames

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

_TRACE_FIELDS = re.compile(r'(?:,\s*)?"(?:traceparent|tracestate)"\s*:\s*"(?:[^"\\]|\\.)*"')

MAX_BACKLOG = 256
"""Maximum frames in the queue. Above it, the socket is not read."""

FRAMES_IN_A_ROW = 64
"""Frames after which other clients have their turn, even if more frames have arrived and none needs to wait."""

MAX_CLOSE_REASON = 120
"""Maximum characters of a close reason. The protocol allows 123 bytes (RFC 6455, section 5.5)."""

MAX_UTF8 = 4
"""Maximum bytes of a character."""

HEADROOM = 64
"""Bytes of a frame for the protocol's version, which is added to the first answer."""

NORMAL, FAILED, RESTART, TRY_AGAIN, UNAUTHORIZED, EVICTED = 1000, 1011, 1012, 1013, 4401, 4409


class Connection:
    """The socket of a client, from open to close; an async context manager that reads frames while it is entered.

    The task that calls `serve` reads a frame and answers it. While it waits for something else than a frame, a second
    task reads: it serves the frames that do not wait, and queues all others. It ends with the first frame that the
    serving task waits for. A receive is never cancelled to resume it elsewhere, because it might have its message.

    Attributes:
        protocol: the version to send with the first reply; None if the client did not ask for it.
        max_answer_bytes: the largest frame that the client takes, which is the end of its connection above it. An
            error is sent instead of a larger answer. None: not known.
        announces: the HTTP server is to be told that the connection is used, and must not be closed to make room.
    """

    max_answer_bytes: int | None = None
    announces = False

    def __init__(self, pool: SessionPool, receive: Receive, send: Send, max_message_bytes: int) -> None:
        self._pool = pool
        self._receive = receive
        self._send = send
        self._max_message_bytes = max_message_bytes
        self._session: Session | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._idle = False  # the serving task waits for a frame
        self._arrived: asyncio.Queue[Arrival | None] = asyncio.Queue(MAX_BACKLOG)  # None wakes `serve`
        self._answers: deque[Arrival] = deque()  # without a request_id, in the order in which they are sent
        self._sending = asyncio.Lock()
        self._urgent = UrgentFrames(self._reply)
        self._working = False  # a frame is being answered, or the session is being opened
        self._stays = False  # the work that continues if the client disconnects
        self._left = False
        self._closed = False  # the client has sent a close frame, so it will not resume
        self._evicted = ""
        self._dismissed = False
        self.protocol: str | None = None

    async def __aenter__(self) -> Connection:
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_reading()

    async def unless_gone(self, opening: Coroutine[Any, Any, T]) -> T:
        """Await ``opening``, and cancel it if the client disconnects.

        Raises:
            Gone: the client has disconnected.
        """
        self._working = True
        reading = self._loop.call_soon(self.start_reading)
        try:
            return await opening
        except asyncio.CancelledError:
            self._gone_or_raise()
            raise
        finally:
            self._working = False
            reading.cancel()

    async def use(self) -> None:
        """Tell the HTTP server, once, that the connection is used."""
        if self.announces:
            self.announces = False
            await self._send({"type": USED})

    async def refuse(self, error: WireError) -> None:
        """Send the reason why there is no session, and close."""
        codes = {CapacityReached: TRY_AGAIN, Unauthorized: UNAUTHORIZED}
        try:
            await self._say(error_text(error, None))
            await self._close(codes.get(type(error), FAILED), error.message if error.message.isascii() else "")
        except Gone:
            return

    async def serve(self, session: Session) -> None:
        """Hold the session, and answer frames until either side closes."""
        self._session = session
        session.attach(self)
        self._dismissed = self._pool.ending
        try:
            try:
                if session.handle is not None:
                    await self.use()
                await self._serve_in_order(session)
            except asyncio.CancelledError:
                if not (self._evicted or self._left) or self._task is None or self._task.uncancel() > 0:
                    raise
            self.stop_reading()  # otherwise the close frame sent here would look like the client's
            if self._left:
                return
            if session.execution.journal is not None:
                self._urgent.cancel()  # they are asked again where the session continues
            if session.execution.sink is not None:
                # A client that sees the socket closed finds the episode in the record.
                await self._release(session)
            if self._evicted:
                await self._close(EVICTED, self._evicted)
            elif self._dismissed:
                await self._close(RESTART, "the server ends")
            else:
                await self._close(NORMAL)
        except Gone:
            return
        finally:
            self.stop_reading()
            self._urgent.cancel()
            await self._release(session)

    def evict(self, why: str) -> None:
        """Close the socket because another socket holds the session, or the session is closed."""
        self._evicted = why
        if self._session is not None and self._session.execution.journal is not None:
            self._urgent.cancel()  # they are asked again where the session continues
        if self._stays:
            self._aside(self._close(EVICTED, why))  # the frame's answer is kept for the client's next socket
        elif self._task is not None and not (self._idle and self._task.cancelling()):
            self._task.cancel()

    def dismiss(self, *, at_once: bool) -> None:
        """Close the socket because the server ends, after the current frame. Without a frame, only if ``at_once``."""
        self._dismissed = True
        if at_once:
            self._wake()

    def _wake(self) -> None:
        if self._reader is None and self._idle:
            assert self._task is not None
            if not self._task.cancelling():
                self._task.cancel()
        elif self._arrived.empty():
            self._arrived.put_nowait(None)

    def stop_reading(self) -> None:
        """Stop the reading task, if there is one."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None  # its traceback refers to this connection: a cycle until the garbage collector runs

    async def _release(self, session: Session) -> None:
        if session.detach(self):
            # It begins at once in this task. Once begun, cancelling this task does not stop it.
            await self._pool.release(session, lost=self._left and not self._closed)

    def _gone_or_raise(self) -> None:
        """Handle the cancellation of a frame's work.

        Raises:
            Gone: it was cancelled because the client has disconnected.
        """
        assert self._task is not None
        if self._left and self._task.uncancel() == 0:
            raise Gone from None

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task of its own, which outlives this connection."""
        task = asyncio.ensure_future(work)
        _ASIDE.add(task)
        task.add_done_callback(_done_aside)

    # -- frames in

    async def _next(self) -> Arrival | None:
        """Return the next frame; None if `_wake` was called or the client has disconnected."""
        self._idle = True
        try:
            if self._reader is not None or not self._arrived.empty():
                return await self._arrived.get()
            return await self._receive_frame()
        except asyncio.CancelledError:
            assert self._task is not None
            if self._dismissed and not self._evicted and self._task.uncancel() == 0:
                return None
            raise
        except Exception:
            logger.exception("frames of a connection could not be read")
            self._left = True
            return None
        finally:
            self._idle = False

    async def _receive_frame(self) -> Arrival | None:
        """Read one frame; return None if the client has disconnected."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._left = True
            return None
        arrival = self._decoded(message.get("text"))
        if arrival.request_id is None:
            self._answers.append(arrival)
        if arrival.frame is not None and arrival.frame.type is FrameType.CLOSE:
            self._closed = True
        return arrival

    def start_reading(self) -> None:
        """Read in a task of its own from now on."""
        if self._reader is None and not self._left:
            self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Read frames until the serving task waits for one, or the client disconnects; then release its work."""
        try:
            while (arrival := await self._receive_frame()) is not None:
                if self._session is not None and arrival.frame is not None and arrival.frame.type.urgent:
                    self._urgent.serve(self._session, arrival)
                    await self._urgent.room()
                    continue
                await self._arrived.put(arrival)
                if self._idle:
                    self._reader = None
                    return
        except Exception:
            logger.exception("frames of a connection could not be read")
            self._left = True
        if not self._working:
            self._wake()
        elif not self._stays:
            assert self._task is not None
            self._task.cancel()
        elif self._session is not None:
            self._aside(self._release(self._session))

    def _decoded(self, text: str | None) -> Arrival:
        if text is None:
            return Arrival(None, None, error=InvalidJSON("a binary frame; frames are JSON text"))
        data, limit = text.encode(), self._max_message_bytes
        if len(data) > min(limit, MAX_PARTS) and (excess := too_large(data, limit)) is not None:
            return Arrival(None, None, error=InvalidMessage(f"the frame has {excess}"))
        try:
            frame = decode_frame(text)
        except WireError as refused:
            return Arrival(None, request_id_of(text), error=refused)
        return Arrival(frame, frame.request_id, None if frame.request_id is None else text)

    async def _serve_in_order(self, session: Session) -> None:
        served = 0
        while not (self._left or self._evicted or self._dismissed):
            served += 1
            if served % FRAMES_IN_A_ROW == 0:
                await asyncio.sleep(0)
            arrival = await self._next()
            if arrival is None:
                continue
            frame = arrival.frame
            if frame is not None and self.announces:
                await self.use()
            if frame is not None and frame.type is FrameType.CLOSE:
                return
            if frame is not None and frame.type.urgent:
                self._urgent.serve(session, arrival)
                if self._urgent.crowded:
                    await self._urgent.room()
                continue
            reading = self._loop.call_soon(self.start_reading)  # while the work is suspended
            try:
                if frame is None:
                    assert arrival.error is not None
                    await self._reply(arrival, error_text(arrival.error, arrival.request_id))
                    continue
                self._working = True
                self._stays = session.credential is not None  # a client that resumes may find it done
                try:
                    if arrival.text is not None:
                        answered = await self._once(session, frame, arrival.text)
                    else:
                        answered = await (answer_traced if session.execution.traces else answer)(session, frame)
                except asyncio.CancelledError:
                    self._gone_or_raise()
                    raise
                finally:
                    self._working = self._stays = False
                if not (self._left or self._evicted):
                    await self._reply(arrival, answered.text)
            finally:
                reading.cancel()

    async def _once(self, session: Session, frame: Frame, text: str) -> Answer:
        """Answer a frame with a request id: once, unless it changes nothing."""
        run = partial(answer_traced if session.execution.traces else answer, session, frame)
        operation = session.operations.get(frame.type)
        if operation is None or operation.idempotent:
            return await run()
        assert self._task is not None and frame.request_id is not None
        if frame.trace is not None:
            text = _TRACE_FIELDS.sub("", text)  # a request that is sent again may belong to another span
        try:
            return await session.replies.once_here(
                frame.request_id,
                text.encode(),
                run,
                self._task,
                partial(cancelled_answer, session, frame),
            )
        except WireError as error:
            return Answer(error_text(error, frame.request_id))

    # -- frames out

    async def _reply(self, arrival: Arrival, text: Text) -> None:
        """Send an answer. One without a ``request_id`` follows the answers to all frames before it."""
        if arrival.request_id is not None:
            if isinstance(text, str):
                await self._say(text, arrival.request_id)
                return
            async with self._sending:  # one at a time is encoded
                await self._say(text(), arrival.request_id)
            return
        arrival.answer = text
        await self._sending.acquire()
        try:
            while self._answers and self._answers[0].answer is not None:
                # Until it is sent, it stays ahead of later answers.
                made = self._answers[0].answer
                await self._say(made if isinstance(made, str) else made())
                self._answers.popleft()
                if not isinstance(made, str):
                    await asyncio.sleep(0)  # encoding may have blocked the loop for long, and more may follow
        finally:
            self._sending.release()

    async def _say(self, text: str, request_id: str | None = None) -> None:
        limit = self.max_answer_bytes
        if limit is not None and len(text) * MAX_UTF8 > limit - HEADROOM:
            size = len(text) if text.isascii() else len(text.encode())
            if size > limit - HEADROOM:
                why = f"the request ran, but its answer has {size} bytes, and this client takes {limit}"
                text = error_text(ReplyGone(f"{why} (max_message_bytes of the client)"), request_id)
        if self.protocol is not None:
            text = json.dumps({**json.loads(text), "protocol": self.protocol})
            self.protocol = None
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError) as error:
            # The server's error for a connection that ended before the answer was ready.
            self._left = True
            raise Gone from error

    async def _close(self, code: int, reason: str = "") -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason[:MAX_CLOSE_REASON]})
        except (OSError, RuntimeError) as error:
            raise Gone from error


_ASIDE: set[asyncio.Task[None]] = set()


def _done_aside(task: asyncio.Task[None]) -> None:
    _ASIDE.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Gone):
        logger.error("a lost connection could not be cleaned up", exc_info=error)
