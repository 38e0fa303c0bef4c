"""``/ws``: one socket, one session, one episode after the other. The thin shell around the wire protocol.

``wait``, ``trajectory`` and ``cancel`` are served at once, also during a step; all others run in order of arrival.
Answers to frames without a ``request_id`` keep the frames' order.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import types
from collections import deque
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.types import Message, Receive, Scope, Send

from mcpenv_client.errors import (
    CapacityReached,
    ExecutionError,
    InvalidJSON,
    InvalidMessage,
    McpenvError,
    NotSerializable,
    OperationCancelled,
    Unauthorized,
    WireError,
)
from mcpenv_client.values import to_plain
from mcpenv_client.wire import (
    PROTOCOL_VERSION,
    Frame,
    FrameType,
    check_version,
    decode_frame,
    encode_reply,
    observation_data,
    request_id_of,
    timeout_of,
)

from .eager import go_on
from .execution import Execution
from .failures import new_incident
from .openenv_route import answer_on_socket
from .pool import SessionPool
from .public_url import base_url_of
from .quick_json import bytes_of, step_reply
from .replies import Answer, is_final
from .session import Credential, Session
from .shim import data_of, latest
from .websocket_protocol import Inbox, WebSocketProtocol

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


class ControlSocket:
    """The ASGI application at ``/ws``.

    Args:
        max_message_bytes: the largest frame; the server's own limit should be larger, because it ends the connection.
        public_url: the server's address for others, if it is not what clients connect to.
    """

    def __init__(
        self,
        pool: SessionPool,
        *,
        max_message_bytes: int,
        public_url: str | None = None,
        trusted_proxies: tuple[str, ...] = (),
    ) -> None:
        self._pool = pool
        self._max_message_bytes = max_message_bytes
        self._public_url = public_url
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket."""
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": _subprotocol(scope)})
        conversation = _Conversation(self._pool, receive, send, self._max_message_bytes)
        asked = scope.get("query_string", b"")
        query = parse_qs(asked.decode("latin-1"), keep_blank_values=True) if asked else {}
        try:
            if "protocol" in query:
                check_version(query["protocol"][0])
                conversation.protocol = PROTOCOL_VERSION
            credential = _credential(scope)
            if "session_id" in query:
                session = self._pool.joinable(query["session_id"][0])
            else:
                opening = self._pool.open_socket(credential, resume="resume" in query)
                session = await conversation.unless_gone(opening)
        except _Gone:
            return
        except WireError as error:
            await conversation.refuse(error)
            return
        session.base_url = self._public_url or base_url_of(scope, self._trusted_proxies)
        server = getattr(receive, "__self__", None)
        if not isinstance(server, WebSocketProtocol):  # or there is something between it and this, which must hear all
            conversation.take(session)
            await conversation.hold(session)
            return
        # A task whose context is at hand, so that what it will go on with can begin where a frame comes.
        context = contextvars.copy_context()
        conversation.heard = Heard(server.inbox, context, context.copy())
        conversation.take(session)
        task = asyncio.get_running_loop().create_task(conversation.hold(session), context=context)
        try:
            await task
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if here is None or here.cancelling() or not task.cancelled():
                await conversation.release(session)  # it may not even have begun
                raise
            # It was cancelled from inside, and met nothing more that waits; what it held is released.


class _Gone(Exception):
    """The client has left, or another socket has taken the session over."""


class _Arrival:
    """A frame, or what is wrong with it.

    Attributes:
        request_id: whose answer or refusal it will be.
        queued: its answer has a place among those that keep the order of their frames.
        text: the answer, while it waits for those before it.
    """

    error: WireError | None = None
    request_id: str | None = None
    queued = False
    text: str | None = None

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        if frame is not None and frame.request_id is not None:
            self.request_id = frame.request_id

    @classmethod
    def refused(cls, error: WireError, request_id: str | None) -> _Arrival:
        """What is no frame."""
        arrival = cls(None)
        arrival.error, arrival.request_id = error, request_id
        return arrival


@dataclass(slots=True, eq=False)
class Heard:
    """How a conversation begins to serve a frame where it comes, without a turn of the event loop.

    Attributes:
        inbox: where frames come.
        context: that of the conversation's task.
        outside: as that was in the beginning: what looks after a step that is under way is not inside of it.
        begun: what was begun in place of the task and waits for something: the task is to go on with it.
        error: what it raised at once.
    """

    inbox: Inbox
    context: contextvars.Context
    outside: contextvars.Context
    begun: tuple[Coroutine[Any, Any, None], Any] | None = None
    error: BaseException | None = None


class _Conversation:
    """What one socket says and hears.

    Attributes:
        protocol: told to the client in the first reply, if it asked.
        heard: None where the server calls nobody when a frame comes.
    """

    def __init__(self, pool: SessionPool, receive: Receive, send: Send, max_message_bytes: int) -> None:
        self._pool = pool
        self._receive = receive
        self._send = send
        self._max_message_bytes = max_message_bytes
        self._session: Session | None = None
        self._pending: asyncio.Task[None] | None = None
        self._arrived: deque[_Arrival] = deque()
        self._answers: deque[_Arrival] = deque()  # in the order in which they are sent
        self._sending = asyncio.Lock()
        self._serving: _Arrival | None = None
        self._urgent: set[asyncio.Task[None]] = set()
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
        except _Gone:
            pass
        finally:
            for task in (*self._urgent, self._pending):
                if task is not None:
                    task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            await self.release(session)

    async def release(self, session: Session) -> None:
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
        except _Gone:
            return

    async def unless_gone(self, answer: Coroutine[Any, Any, T]) -> T:
        """Await ``answer``; if the client leaves meanwhile, cancel it.

        Raises:
            _Gone: the client has left.
        """
        self._task = asyncio.current_task()
        self._waits()
        try:
            return await answer
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
            _Gone: because the client has left.
        """
        assert self._task is not None
        if self._left and self._task.uncancel() == 0:
            raise _Gone from None

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

    async def _serve_one(self, session: Session, arrival: _Arrival, *, at_once: bool) -> None:
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
                self._serve_at_once(arrival)
                return
        self._serving = arrival
        once = frame.request_id is not None and frame.type is not _STATE
        answering = self._once(session, frame) if once else _answer(session, frame)
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
                lambda: _answer(session, frame),
                self._task,
                lambda: _cancelled(frame),
            )
        except WireError as error:
            return Answer(encode_reply("error", error.to_wire(), frame.request_id))

    # -- at once

    def _serve_at_once(self, arrival: _Arrival) -> None:
        assert self._session is not None
        # What runs now is what it is about, also if a reset is served before this task begins.
        execution = self._session.execution
        task = asyncio.ensure_future(self._answer_at_once(arrival, execution, execution.episode.id))
        self._urgent.add(task)
        task.add_done_callback(self._urgent.discard)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside what is under way, to its end."""
        task = asyncio.ensure_future(work)
        _ASIDE.add(task)
        task.add_done_callback(_done_aside)

    async def _answer_at_once(self, arrival: _Arrival, execution: Execution, episode_id: str | None) -> None:
        frame, session = arrival.frame, self._session
        assert frame is not None
        assert session is not None
        try:
            if frame.type is FrameType.WAIT:
                await execution.wait(timeout_of(frame.data.get("timeout_s")), episode_id=episode_id)
                text = encode_reply("observation", observation_data(latest(execution)), frame.request_id)
            elif frame.type is FrameType.TRAJECTORY:
                text = encode_reply("trajectory", _trajectory(session), frame.request_id)
            else:
                text = encode_reply("cancel", {"cancelled": _cancel(session, frame)}, frame.request_id)
        except McpenvError as error:
            text = encode_reply("error", _wire_error(error).to_wire(), frame.request_id)
        except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
            text = encode_reply("error", _internal(error).to_wire(), frame.request_id)
        try:
            await self._reply(arrival, text)
        except _Gone:
            return

    # -- frames in

    async def _next(self) -> _Arrival | None:
        """The next frame to be served; None: what came was served where it came."""
        if self._arrived:
            return self._arrived.popleft()
        if self._left:
            raise _Gone
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
            (work, awaited), heard.begun = heard.begun, None
            await _rest_of(work, awaited, cancelled)

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
        loop = task.get_loop()
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
            heard.begun = work, awaited
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
                    if self._stays and self._session is not None:
                        self._aside(self.release(self._session))
                    elif self._waiting_for is not None:
                        self._waiting_for.cancel()
                    return
                self._queue(arrival)
                # Before there is a session they wait like all others.
                if arrival.frame is not None and arrival.frame.type.urgent and self._session is not None:
                    self._serve_at_once(arrival)
                else:
                    self._arrived.append(arrival)
                if self._waiting_for is None:
                    return
        finally:
            self._pending = None

    def _read(self, message: Message) -> _Arrival | None:
        """What came; None: the client has left."""
        if message["type"] == "websocket.disconnect":
            self._left = True
            return None
        return self._read_text(message.get("text"))

    def _read_text(self, text: str | None) -> _Arrival:
        try:
            if text is None:
                raise InvalidJSON("a binary frame; frames are JSON text")
            size = len(text) if text.isascii() else len(text.encode())
            if size > self._max_message_bytes:
                raise InvalidMessage(f"a frame of {size} bytes; at most {self._max_message_bytes} are taken")
            frame = decode_frame(text)
        except WireError as refused:
            whose = None
            if text is not None and len(text) <= self._max_message_bytes:
                whose = request_id_of(text)
            return _Arrival.refused(refused, whose)
        return _Arrival(frame)

    def _queue_if_late(self, arrival: _Arrival) -> None:
        """Answers before its own are to be sent, or others may be sent before it."""
        frame = arrival.frame
        if self._answers or (frame is not None and frame.type is not _STEP and frame.type.urgent):
            self._queue(arrival)

    def _queue(self, arrival: _Arrival) -> None:
        """From now on its answer waits for those of the frames before it; one with a ``request_id`` need not."""
        if arrival.request_id is None and not arrival.queued:
            arrival.queued = True
            self._answers.append(arrival)

    # -- frames out

    async def _reply(self, arrival: _Arrival, text: str) -> None:
        if not arrival.queued:
            await self._say(text)
            return
        arrival.text = text
        async with self._sending:
            while self._answers and self._answers[0].text is not None:
                # Until it is sent it stands before those that come.
                await self._say(self._answers[0].text)
                self._answers.popleft()

    async def _say(self, text: str) -> None:
        if self.protocol is not None:
            text = f'{text[:-1]},"protocol":"{self.protocol}"}}'
            self.protocol = None
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError) as error:
            # The server says so in its own way: the connection ended before the answer was ready.
            self._left = True
            raise _Gone from error

    async def _close(self, code: int, reason: str = "") -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason[:MAX_REASON]})
        except (OSError, RuntimeError) as error:
            raise _Gone from error


@types.coroutine
def _rest_of(
    work: Coroutine[Any, Any, None], awaited: Any, cancelled: asyncio.CancelledError | None
) -> Generator[Any, Any, None]:
    """Await ``work``, which was begun elsewhere and waits for ``awaited``, or was ``cancelled`` there."""
    # As a task does it: what is waited for is cancelled, and only if that cannot be, the waiting itself.
    if cancelled is not None and (awaited is None or not awaited.cancel()):
        try:
            awaited = work.throw(cancelled)
        except StopIteration:
            return
    yield from go_on(work, awaited)


_ASIDE: set[asyncio.Task[None]] = set()


def _done_aside(task: asyncio.Task[None]) -> None:
    _ASIDE.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, _Gone):
        logger.error("a socket that was given up could not be let go", exc_info=error)


async def _answer(session: Session, frame: Frame) -> Answer:
    """Do what a frame asks that is not urgent; a refusal is an answer too."""
    try:
        if frame.type is _STEP:
            call = session.call_of(frame.data, frame.timeout_s)
            if call is None:
                data = await session.step(frame.data, frame.timeout_s)
            else:
                data = data_of(session.execution, await call)
            return Answer(step_reply(data, frame.request_id))
        if frame.type is FrameType.RESET:
            data = observation_data(await session.reset(frame.data, frame.timeout_s))
            return Answer(encode_reply("observation", data, frame.request_id))
        if frame.type is FrameType.END:
            data = observation_data(await session.end(frame.data))
            return Answer(encode_reply("observation", data, frame.request_id))
        if frame.type in _OF_SNAPSHOTS:
            return await _answer_of_snapshots(session, frame)
        if frame.type is FrameType.MCP:
            data = await answer_on_socket(session, frame.data, frame.timeout_s)
            return Answer(encode_reply("mcp", data, frame.request_id))
        state = to_plain(await session.state(frame.timeout_s), "state")
        return Answer(encode_reply("state", state, frame.request_id))
    except McpenvError as error:
        refused = _wire_error(error)
        return Answer(encode_reply("error", refused.to_wire(), frame.request_id), final=is_final(refused))
    except Exception as error:  # noqa: BLE001 - the wire's boundary; logged there
        return Answer(encode_reply("error", _internal(error).to_wire(), frame.request_id))


_OF_SNAPSHOTS = (FrameType.SNAPSHOT, FrameType.RESTORE, FrameType.FORK, FrameType.DROP_SNAPSHOT)


async def _answer_of_snapshots(session: Session, frame: Frame) -> Answer:
    """Do what a frame about snapshots asks.

    Raises:
        WireError: refused.
    """
    if frame.type is FrameType.SNAPSHOT:
        data = await session.snapshot(frame.data, frame.timeout_s)
    elif frame.type is FrameType.FORK:
        data = await session.fork(frame.data, frame.timeout_s)
    elif frame.type is FrameType.RESTORE:
        data = observation_data(await session.restore(frame.data, frame.timeout_s))
        return Answer(encode_reply("observation", data, frame.request_id))
    else:
        data = {"dropped": session.drop_snapshot(frame.data)}
    return Answer(encode_reply(frame.type.value, data, frame.request_id))


def _cancelled(frame: Frame) -> Answer:
    error = OperationCancelled(f"the {frame.type.value} was cancelled")
    return Answer(encode_reply("error", error.to_wire(), frame.request_id))


def _cancel(session: Session, frame: Frame) -> bool:
    target = frame.data.get("request_id")
    if not isinstance(target, str):
        raise InvalidMessage(
            "cancel needs data.request_id",
            errors=[{"loc": ["data", "request_id"], "msg": "not a string", "type": "str"}],
        )
    running = session.replies.running(target)
    return running is not None and running.cancel()


def _trajectory(session: Session) -> dict[str, Any]:
    trajectory = session.execution.episode.trajectory
    if trajectory is None:
        raise InvalidMessage("there is no episode yet; reset first")
    return trajectory.to_plain()


def _wire_error(error: McpenvError) -> WireError:
    if isinstance(error, WireError):
        return error
    if isinstance(error, NotSerializable):
        logger.error("a reply has no JSON form: %s", error)
        return ExecutionError(f"the reply has no JSON form: {error}")
    return ExecutionError(str(error))


def _internal(error: Exception) -> WireError:
    incident = new_incident()
    logger.error("incident %s: a frame could not be answered", incident, exc_info=error)
    return ExecutionError(f"internal error (incident {incident})", incident=incident)


_CREDENTIAL = (b"mcpenv-session-id", b"mcpenv-session-token")


def _credential(scope: Scope) -> Credential | None:
    """The session id and secret that a client chose so that it can come back."""
    chosen = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _CREDENTIAL}
    return Credential.of(*map(chosen.get, _CREDENTIAL)) if chosen else None


def _subprotocol(scope: Scope) -> str | None:
    """Browsers cannot set headers: they name the protocol, and beside it their token, as subprotocols."""
    return "mcpenv" if "mcpenv" in scope.get("subprotocols", ()) else None
