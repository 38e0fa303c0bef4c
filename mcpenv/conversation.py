"""What one client says and hears on ``/ws``, in which order.

``wait``, ``trajectory`` and ``cancel`` are served at once, also during a step; all others run in order of arrival.
Answers to frames without a ``request_id`` keep the frames' order.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Message, Receive, Send

from mcpenv_client.errors import CapacityReached, InvalidJSON, InvalidMessage, Unauthorized, WireError
from mcpenv_client.wire import Frame, FrameType, decode_frame, encode_reply, request_id_of

from .eager import Begun
from .frame_answers import Text, answer_frame, cancelled_answer
from .pool import SessionPool
from .quick_json import bytes_of, step_frame
from .replies import Answer
from .session import Session
from .urgent_frames import Gone, UrgentFrames
from .websocket_protocol import Inbox

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

WATCH_AFTER_S = 0.015
"""Seconds, at least; twice as many at most. While a frame is answered that takes longer, its socket is heard for what
else its client sends. A timer for each frame would cost more than quick ones do: one looks at all of them."""

MAX_BACKLOG = 256
"""Frames that may wait behind one under way; then the socket is not read."""

MAX_REASON = 120
"""Characters of a closing's reason; the protocol allows 123 bytes (RFC 6455, section 5.5)."""

_STEP, _STATE = FrameType.STEP, FrameType.STATE
# Names of their own: to look a member up in its class costs a quarter of a microsecond.

NORMAL, FAILED, RESTART, TRY_AGAIN, UNAUTHORIZED, EVICTED = 1000, 1011, 1012, 1013, 4401, 4409


class Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        request_id: whose answer or refusal it will be.
        queued: its answer has a place among those that keep the order of their frames.
        answer: while it waits for those before it.
    """

    error: WireError | None = None
    request_id: str | None = None
    queued = False
    answer: Text | None = None

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        if frame is not None and frame.request_id is not None:
            self.request_id = frame.request_id

    @classmethod
    def refused(cls, error: WireError, request_id: str | None) -> Arrival:
        """What is no frame."""
        arrival = cls(None)
        arrival.error, arrival.request_id = error, request_id
        return arrival


@dataclass(slots=True, eq=False)
class Heard:
    """How a conversation begins to serve a frame where it comes, without a turn of the event loop.

    Attributes:
        inbox: where frames come.
        loop: on which.
        context: that of the conversation's task.
        outside: as that was in the beginning: what looks after a step that is under way is not inside of it.
        begun: what was begun in place of the task and waits for something: the task is to go on with it.
        error: what it raised at once.
    """

    inbox: Inbox
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context
    outside: contextvars.Context
    begun: Begun | None = None
    error: BaseException | None = None


class Conversation:
    """What one socket says and hears.

    Attributes:
        protocol: told to the client in the first reply, if it asked.
        heard: None where the server calls nobody when a frame comes.
    """

    __slots__ = (
        "_answering",
        "_answers",
        "_arrived",
        "_dismissed",
        "_evicted",
        "_idle",
        "_left",
        "_max_message_bytes",
        "_over",
        "_pending",
        "_pool",
        "_receive",
        "_send",
        "_sending",
        "_serving",
        "_session",
        "_stays",
        "_task",
        "_timer",
        "_urgent",
        "_waiting_for",
        "_watched",
        "heard",
        "protocol",
    )

    def __init__(self, pool: SessionPool, receive: Receive, send: Send, max_message_bytes: int) -> None:
        self._pool = pool
        self._receive = receive
        self._send = send
        self._max_message_bytes = max_message_bytes
        self._session: Session | None = None
        self._pending: asyncio.Task[None] | None = None
        self._arrived: deque[Arrival] = deque()
        self._answers: deque[Arrival] = deque()  # in the order in which they are sent
        self._sending = asyncio.Lock()
        self._serving: Arrival | None = None
        self._urgent = UrgentFrames(self._reply)
        self._left = False
        self._evicted = ""
        self._dismissed = False
        self._idle = False
        self._task: asyncio.Task[Any] | None = None
        self._waiting_for: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched = False
        self._stays = False  # what is under way goes on, whoever leaves
        self._answering = False  # of what is under way, the answer is being made
        self._over = False
        self.protocol: str | None = None
        self.heard: Heard | None = None

    def take(self, session: Session) -> None:
        """Hold the session from now on; `hold` is to follow."""
        self._task = None
        session.attach(self)

    async def hold(self, session: Session) -> None:
        """Serve the session, to which it is attached, until either side ends."""
        self._session = session
        self._task = asyncio.current_task()
        self._dismissed = self._dismissed or self._pool.slots.closed
        try:
            try:
                if not self._evicted:
                    await self._serve(session)
            except asyncio.CancelledError:
                if not (self._evicted or self._dismissed) or self._task is None or self._task.uncancel() > 0:
                    raise
            code = EVICTED if self._evicted else RESTART if self._dismissed else NORMAL
            if session.execution.sink is not None:
                # Who reads that the socket is closed finds the episode in the record.
                await self.release(session)
            await self._close(code, self._evicted or ("the server ends" if self._dismissed else ""))
        except Gone:
            pass
        finally:
            self._urgent.cancel()
            if self._pending is not None:
                self._pending.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await self.release(session)

    async def release(self, session: Session) -> None:
        """Hold the session no more, if it still does."""
        if session.let_go(self):
            # In this task: it begins at once, and once begun no cancelling of this one stops it.
            await self._pool.release(session, lost=self._left)

    def evict(self, why: str) -> None:
        """It holds the session no more."""
        self._evicted = why
        if self._stays:
            self._aside(self._close(EVICTED, why))  # what is under way goes on, and is answered elsewhere
        elif self._task is not None:
            self._task.cancel()

    def dismiss(self, *, at_once: bool) -> None:
        """The server is about to end."""
        self._dismissed = True
        if at_once and self._idle and self._task is not None:
            self._idle = False
            self._task.cancel()

    async def refuse(self, error: WireError) -> None:
        """Say why there is no session, and close."""
        codes = {CapacityReached: TRY_AGAIN, Unauthorized: UNAUTHORIZED}
        try:
            await self._say(encode_reply("error", error.to_wire()))
            await self._close(codes.get(type(error), FAILED), error.message if error.message.isascii() else "")
        except Gone:
            return

    async def unless_gone(self, opening: Coroutine[Any, Any, T]) -> T:
        """Await ``opening``; if the client leaves meanwhile, cancel it.

        Raises:
            Gone: the client has left.
        """
        self._task = asyncio.current_task()
        self._waits()
        try:
            return await opening
        except asyncio.CancelledError:
            self._gone_or_raise()
            raise
        finally:
            self._waiting_for = None

    def _waits(self) -> None:
        """An answer is not made at once: look after it."""
        task = self._waiting_for = self._task
        assert task is not None
        self._watched = False
        if self._timer is None:
            context = None if self.heard is None else self.heard.outside
            self._timer = task.get_loop().call_later(WATCH_AFTER_S, self._watch, context=context)

    def _gone_or_raise(self) -> None:
        """What is under way was cancelled.

        Raises:
            Gone: because the client has left.
        """
        assert self._task is not None
        if self._left and self._task.uncancel() == 0:
            raise Gone from None

    def _watch(self) -> None:
        """Look at what is being answered: the second time at the same, it is quick no more."""
        self._timer = None
        if self._waiting_for is None:
            return
        if self._watched:
            self._listen()
        else:
            self._watched = True
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)

    # -- in order of arrival

    async def _serve(self, session: Session) -> None:
        while not (self._over or self._dismissed):
            self._idle = True
            arrival = await self._next()
            self._idle = False
            if arrival is not None:
                await self._serve_one(session, arrival, at_once=False)

    async def _serve_one(self, session: Session, arrival: Arrival, *, at_once: bool) -> None:
        """Answer a frame.

        Args:
            at_once: it is begun outside of the task, which goes on with it if it waits.
        """
        frame = arrival.frame
        if frame is None:
            assert arrival.error is not None
            await self._reply(arrival, encode_reply("error", arrival.error.to_wire(), arrival.request_id))
            return
        if frame.type is not _STEP:
            if frame.type is FrameType.CLOSE:
                self._over = True
                return
            if frame.type.urgent:
                self._urgent.serve(session, arrival)
                await self._urgent.room()
                return
        self._serving = arrival
        once = frame.request_id is not None and frame.type is not _STATE
        answering = self._once(session, frame) if once else answer_frame(session, frame)
        # A client that can come back may find it done.
        self._stays = session.credential is not None
        self._answering = True
        if not at_once:
            self._waits()
        try:
            answer = await answering
        except asyncio.CancelledError:
            self._gone_or_raise()
            raise
        finally:
            self._stays = self._answering = False
            self._waiting_for = None
        if self._left or self._evicted:
            self._over = True
        elif arrival.queued:
            await self._reply(arrival, answer.text)
        elif self.heard is None or self.protocol is not None or not self.heard.inbox.send_at_once(answer.text):
            await self._say(answer.text)

    async def _once(self, session: Session, frame: Frame) -> Answer:
        assert frame.request_id is not None
        assert self._task is not None
        body = bytes_of([frame.type.value, frame.data, frame.timeout_s])
        try:
            return await session.replies.once_here(
                frame.request_id,
                body,
                lambda: answer_frame(session, frame),
                self._task,
                lambda: cancelled_answer(frame),
            )
        except WireError as error:
            return Answer(encode_reply("error", error.to_wire(), frame.request_id))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside what is under way, to its end."""
        task = asyncio.ensure_future(work)
        _ASIDE.add(task)
        task.add_done_callback(_done_aside)

    # -- frames in

    async def _next(self) -> Arrival | None:
        """The next frame to be served; None: what came was served where it came."""
        if self._arrived:
            return self._arrived.popleft()
        if self._left:
            raise Gone
        if self._pending is not None:
            await asyncio.wait({self._pending})
            return None
        if self.heard is not None and self.heard.inbox.empty():
            await self._hear(self.heard)
            return None
        arrival = self._read(await self._receive())
        if arrival is not None:
            self._queue_if_late(arrival)
        return arrival

    async def _hear(self, heard: Heard) -> None:
        """Let frames be served where they come, until one of them has to wait for something."""
        heard.inbox.listener = self._hears
        cancelled: asyncio.CancelledError | None = None
        try:
            await heard.inbox.wait()
        except asyncio.CancelledError as error:
            if heard.begun is None:
                raise
            cancelled = error
        finally:
            heard.inbox.listener = None
        if heard.error is not None:
            raise heard.error
        if heard.begun is not None:
            begun, heard.begun = heard.begun, None
            await begun.rest(cancelled)

    def _hears(self, text: str) -> None:
        """A frame came, and nothing is under way."""
        heard, task, session = self.heard, self._task, self._session
        assert heard is not None
        assert task is not None
        assert session is not None
        arrival = self._read_text(text)
        if self._answers or arrival.frame is None or arrival.frame.type is not _STEP:
            self._queue_if_late(arrival)
        self._idle = False
        work = self._serve_one(session, arrival, at_once=True)
        loop = heard.loop
        asyncio._enter_task(loop, task)
        try:
            awaited = heard.context.run(work.send, None)
        except StopIteration:
            if not (self._over or self._dismissed or self._left):
                self._idle = True
                return
        except BaseException as error:  # noqa: BLE001 - raised in the task
            heard.error = error
        else:
            heard.begun = Begun(work, awaited)
            if self._answering:
                self._waits()
        finally:
            asyncio._leave_task(loop, task)
        heard.inbox.listener = None
        heard.inbox.wake()

    def _listen(self) -> None:
        """Hear frames while another is being answered."""
        if self._serving is not None:
            self._queue(self._serving)
        if self._pending is None or self._pending.done():
            self._pending = asyncio.ensure_future(self._hear_on())

    async def _hear_on(self) -> None:
        try:
            while not self._left and len(self._arrived) < MAX_BACKLOG:
                arrival = self._read(await self._receive())
                if arrival is None:
                    break
                self._queue(arrival)
                # Before there is a session they wait like all others.
                if arrival.frame is not None and arrival.frame.type.urgent and self._session is not None:
                    self._urgent.serve(self._session, arrival)
                    await self._urgent.room()
                else:
                    self._arrived.append(arrival)
                if self._waiting_for is None:
                    return
            if self._left and self._stays and self._session is not None:
                self._aside(self.release(self._session))
            elif self._left and self._waiting_for is not None:
                self._waiting_for.cancel()
        finally:
            self._pending = None

    def _read(self, message: Message) -> Arrival | None:
        """What came; None: the client has left."""
        if message["type"] == "websocket.disconnect":
            self._left = True
            return None
        return self._read_text(message.get("text"))

    def _read_text(self, text: str | None) -> Arrival:
        try:
            if text is None:
                raise InvalidJSON("a binary frame; frames are JSON text")
            size = len(text) if text.isascii() else len(text.encode())
            if size > self._max_message_bytes:
                raise InvalidMessage(f"a frame of {size} bytes; at most {self._max_message_bytes} are taken")
            frame = step_frame(text) or decode_frame(text)
        except WireError as refused:
            whose = None
            if text is not None and len(text) <= self._max_message_bytes:
                whose = request_id_of(text)
            return Arrival.refused(refused, whose)
        return Arrival(frame)

    def _queue_if_late(self, arrival: Arrival) -> None:
        """Answers before its own are to be sent, or others may be sent before it."""
        frame = arrival.frame
        if self._answers or (frame is not None and frame.type is not _STEP and frame.type.urgent):
            self._queue(arrival)

    def _queue(self, arrival: Arrival) -> None:
        """From now on its answer waits for those of the frames before it; one with a ``request_id`` need not."""
        if arrival.request_id is None and not arrival.queued:
            arrival.queued = True
            self._answers.append(arrival)

    # -- frames out

    async def _reply(self, arrival: Arrival, answer: Text) -> None:
        if arrival.queued:
            arrival.answer = answer
            async with self._sending:
                while self._answers and self._answers[0].answer is not None:
                    # Until it is sent it stands before those that come.
                    made = self._answers[0].answer
                    await self._say(made if isinstance(made, str) else made())
                    self._answers.popleft()
                    if not isinstance(made, str):
                        await asyncio.sleep(0)  # it may have taken long to make, and more may wait
        elif isinstance(answer, str):
            await self._say(answer)
        else:
            async with self._sending:  # one at a time is made
                await self._say(answer())

    async def _say(self, text: str) -> None:
        if self.protocol is not None:
            text = f'{text[:-1]},"protocol":"{self.protocol}"}}'
            self.protocol = None
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError) as error:
            # The server says so in its own way: the connection ended before the answer was ready.
            self._left = True
            raise Gone from error

    async def _close(self, code: int, reason: str = "") -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason[:MAX_REASON]})
        except (OSError, RuntimeError) as error:
            raise Gone from error


_ASIDE: set[asyncio.Task[None]] = set()


def _done_aside(task: asyncio.Task[None]) -> None:
    _ASIDE.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Gone):
        logger.error("a socket that was given up could not be let go", exc_info=error)
