"""Channels: ordered calls and notices in both directions between the hub and a worker."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from mcpenv_client.errors import ExecutionError, McpenvError, SessionLost, WireError, from_wire

from . import framing
from .messages import CHANNEL, Answer, Call, Cancel, Message, Notice, Notify, Refusal, Request

logger = logging.getLogger("mcpenv")

Handlers = Mapping[type[Message], Callable[[Any], Any]]
ReplyT = TypeVar("ReplyT", bound=Message)


class Channel:
    """One end of a channel.

    Args:
        handlers: the function for each message that the other end may send. It gets the message and returns the reply;
            None for a notice. Sync ones run in order of arrival, each before the next message is read. Async ones run
            in a task each.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._undo: dict[int, Callable[[], None]] = {}
        self._serving: dict[int, asyncio.Future[Any]] = {}
        self.closed = False

    async def call(self, request: Request, reply: type[ReplyT], *, undo: Callable[[], None] | None = None) -> ReplyT:
        """Send a request to the other end and return its reply. Cancelling cancels the handler.

        Args:
            reply: the type of the reply.
            undo: called if the caller was cancelled but the handler completed.

        Raises:
            WireError: the handler raised it, or failed.
            SessionLost: the connection to the other end is lost.
        """
        if self.closed:
            raise _gone()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send(Call(number=number, request=request))
            value = await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                if undo is not None:
                    self._undo[number] = undo
                self._send(Cancel(number=number))
            elif undo is not None and answer.exception() is None:
                undo()
            raise
        finally:
            self._waiting.pop(number, None)
        if not isinstance(value, reply):
            logger.error("%s was answered with %s, not %s", *map(_name, (request, value)), reply.__name__)
            raise _internal()
        return value

    def tell(self, notice: Notice) -> None:
        """Send a notice to the other end."""
        self._send(Notify(notice=notice))

    async def serve(self) -> None:
        """Serve messages of the other end until it disconnects. Calls that it has not answered then raise.

        A message that does not fit is logged, and ends the channel.
        """
        try:
            while True:
                self._receive(await framing.receive(self._reader, CHANNEL))
        except framing.Closed:
            return
        except framing.BadMessage as error:
            logger.error("the connection between two processes of the server is closed: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, fail pending calls and cancel running handlers. Idempotent."""
        self.closed = True
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_gone())
        for task in self._serving.values():
            task.cancel()

    def _receive(self, message: Message) -> None:
        if isinstance(message, Notify):
            self._notice(message.notice)
        elif isinstance(message, Call):
            self._begin(message.number, message.request)
        elif isinstance(message, Cancel):
            task = self._serving.get(message.number)
            if task is not None:
                task.cancel()
        elif isinstance(message, Answer):
            undo = self._undo.pop(message.number, None)
            if undo is not None:
                undo()
            self._pending(message.number, lambda answer: answer.set_result(message.reply))
        elif isinstance(message, Refusal):
            self._undo.pop(message.number, None)
            self._pending(message.number, lambda answer: answer.set_exception(from_wire(message.error)))

    def _pending(self, number: int, finish: Callable[[asyncio.Future[Any]], None]) -> None:
        answer = self._waiting.get(number)
        if answer is not None and not answer.done():
            finish(answer)

    def _notice(self, notice: Notice) -> None:
        try:
            self._handlers[type(notice)](notice)
        except Exception:  # the boundary between processes
            logger.exception("a notice of type %s between the processes of the server failed", _name(notice))

    def _begin(self, number: int, request: Message) -> None:
        """Start to answer a call, and answer it if its handler is sync."""
        try:
            value = self._handlers[type(request)](request)
            if not inspect.isawaitable(value):
                self._send(Answer(number=number, reply=value))
                return
        except Exception as error:  # noqa: BLE001 - the boundary between processes
            self._refuse(number, request, error)
            return
        task = asyncio.ensure_future(value)
        self._serving[number] = task
        task.add_done_callback(functools.partial(self._finish, number, request))

    def _finish(self, number: int, request: Message, task: asyncio.Future[Any]) -> None:
        """Answer a call whose handler has ended. A cancelled one needs no answer."""
        del self._serving[number]
        if task.cancelled():
            return
        try:
            self._send(Answer(number=number, reply=task.result()))
        except Exception as error:  # noqa: BLE001 - the boundary between processes
            self._refuse(number, request, error)

    def _refuse(self, number: int, request: Message, error: Exception) -> None:
        """Answer a call with an error. The log has the traceback of one that is not deliberate."""
        if not isinstance(error, McpenvError):
            logger.error("a call of type %s between the processes of the server failed", _name(request), exc_info=error)
            error = _internal()
        wire = error if isinstance(error, WireError) else ExecutionError(str(error))
        self._send(Refusal(number=number, error=to_jsonable_python(wire.to_wire(), fallback=str)))

    def _send(self, message: Message) -> None:
        if not self.closed:
            framing.send(self._writer, message)


def _name(message: Message) -> str:
    return type(message).__name__


def _gone() -> SessionLost:
    return SessionLost("a worker of this server is gone")


def _internal() -> ExecutionError:
    return ExecutionError("internal error between the server's workers")
