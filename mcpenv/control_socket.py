"""``/ws``: one socket, one session, one episode after the other. The thin shell around the wire protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
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
)

from .failures import new_incident
from .session import Origin, Session, SessionPool

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

WATCH_AFTER_S = 0.02
"""A frame whose answer takes longer is watched for its client's leaving; quick ones pay nothing for it."""

NORMAL, GOING_AWAY, FAILED, TRY_AGAIN = 1000, 1001, 1011, 1013


class ControlSocket:
    """The ASGI application at ``/ws``.

    Args:
        max_message_bytes: the largest frame; the server's own limit should be larger, because it ends the connection.
    """

    def __init__(self, pool: SessionPool, *, max_message_bytes: int) -> None:
        self._pool = pool
        self._max_message_bytes = max_message_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket."""
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        socket = _Socket(receive, send)
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("protocol")
        try:
            if asked:
                check_version(asked[0])
                socket.protocol = PROTOCOL_VERSION
            session = await socket.unless_gone(self._pool.open(Origin.SOCKET))
        except _Gone:
            return
        except WireError as error:
            await socket.reply("error", error.to_wire(), None)
            await socket.close(TRY_AGAIN if isinstance(error, CapacityReached) else FAILED)
            return
        try:
            await self._serve(socket, session)
            await socket.close(NORMAL)
        except _Gone:
            pass
        finally:
            await asyncio.shield(asyncio.ensure_future(self._pool.close(session)))

    async def _serve(self, socket: _Socket, session: Session) -> None:
        """Answer frames in order of arrival until ``close``."""
        while True:
            text = await socket.next_text()
            request_id: str | None = None
            try:
                if text is None:
                    raise InvalidJSON("a binary frame; frames are JSON text")
                if len(text) > self._max_message_bytes:
                    raise InvalidMessage(f"a frame of {len(text)} bytes; at most {self._max_message_bytes} are taken")
                frame = decode_frame(text)
                request_id = frame.request_id
                if frame.type is FrameType.CLOSE:
                    return
                await socket.unless_gone(self._answer(socket, session, frame))
            except _Gone:
                raise
            except NotSerializable as error:
                logger.error("a reply has no JSON form: %s", error)
                await socket.reply(
                    "error", ExecutionError(f"the reply has no JSON form: {error}").to_wire(), request_id
                )
            except WireError as error:
                if request_id is None and text is not None and len(text) <= self._max_message_bytes:
                    request_id = request_id_of(text)
                await socket.reply("error", error.to_wire(), request_id)
            except McpenvError as error:
                await socket.reply("error", ExecutionError(str(error)).to_wire(), request_id)
            except Exception:
                incident = new_incident()
                logger.exception("incident %s: a frame could not be answered", incident)
                failed = ExecutionError(f"internal error (incident {incident})", incident=incident)
                await socket.reply("error", failed.to_wire(), request_id)

    async def _answer(self, socket: _Socket, session: Session, frame: Frame) -> None:
        if frame.type is FrameType.STEP:
            observation = await session.step(frame.data, frame.timeout_s)
            await socket.reply("observation", observation_data(observation), frame.request_id)
        elif frame.type is FrameType.RESET:
            observation = await session.reset(frame.data, frame.timeout_s)
            await socket.reply("observation", observation_data(observation), frame.request_id)
        else:
            state = await session.state(frame.timeout_s)
            await socket.reply("state", to_plain(state, "state"), frame.request_id)


class _Gone(Exception):
    """The client has left."""


class _Socket:
    """Frames in and out, and a watch for the client's leaving while an answer is being made.

    Attributes:
        protocol: told to the client in the first reply, if it asked.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._pending: asyncio.Task[Message] | None = None
        self.protocol: str | None = None

    async def next_text(self) -> str | None:
        """The next frame's text, None for a binary frame.

        Raises:
            _Gone: the client has left.
        """
        pending, self._pending = self._pending, None
        message = await (pending if pending is not None else self._receive())
        if message["type"] == "websocket.disconnect":
            raise _Gone
        text: str | None = message.get("text")
        return text

    async def reply(self, kind: str, data: dict[str, object], request_id: str | None) -> None:
        """Send a frame."""
        text = encode_reply(kind, data, request_id)
        if self.protocol is not None:
            text = f'{text[:-1]},"protocol":"{self.protocol}"}}'
            self.protocol = None
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError) as error:
            # The server says so in its own way: the connection ended before the answer was ready.
            raise _Gone from error

    async def close(self, code: int) -> None:
        """Close from this side."""
        try:
            await self._send({"type": "websocket.close", "code": code})
        except (OSError, RuntimeError) as error:
            raise _Gone from error

    async def unless_gone(self, answer: Coroutine[Any, Any, T]) -> T:
        """Await ``answer``; if the client leaves meanwhile, cancel it.

        Raises:
            _Gone: the client has left.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        left = False

        def look(pending: asyncio.Task[Message]) -> None:
            nonlocal left
            if not pending.cancelled() and pending.exception() is None:
                left = pending.result()["type"] == "websocket.disconnect" and not over
                if left:
                    task.cancel()

        def begin() -> None:
            # What this receives is kept as the next frame, unless it is the client's leaving.
            self._pending = loop.create_task(self._receive())  # type: ignore[arg-type]
            self._pending.add_done_callback(look)

        over = False
        timer = loop.call_later(WATCH_AFTER_S, begin) if self._pending is None else None
        try:
            return await answer
        except asyncio.CancelledError:
            if not left or task.uncancel() > 0:
                raise
            raise _Gone from None
        finally:
            over = True
            if timer is not None:
                timer.cancel()
