"""Channels: ordered calls and notifications in both directions between the hub and a worker."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from mcpenv_client.errors import ExecutionError, McpenvError, SessionLost, WireError, from_wire

from . import framing

logger = logging.getLogger("mcpenv")

_NOTICE, _CALL, _ANSWER, _REFUSAL, _CANCEL = range(5)

Handlers = Mapping[str, Callable[..., Any]]


class Channel:
    """One end of a channel.

    Args:
        handlers: the functions that the other end may call, by name. Sync ones run in order of arrival, each before the
            next message is read. Async ones run in a task each.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._undo: dict[int, Callable[[Any], None]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self.closed = False

    async def call(self, name: str, *arguments: Any, undo: Callable[[Any], None] | None = None) -> Any:
        """Call a handler of the other end and return its result. Cancelling cancels the handler.

        Args:
            undo: called with the result if the caller was cancelled but the handler completed.

        Raises:
            WireError: the handler raised it.
            SessionLost: the connection to the other end is lost.
        """
        if self.closed:
            raise _gone()
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send((_CALL, number, name, arguments))
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                if undo is not None:
                    self._undo[number] = undo
                self._send((_CANCEL, number))
            elif undo is not None and answer.exception() is None:
                undo(answer.result())
            raise
        finally:
            self._waiting.pop(number, None)

    def notify(self, name: str, *arguments: Any) -> None:
        """Notify a sync handler of the other end, without a reply."""
        self._send((_NOTICE, name, arguments))

    async def serve(self) -> None:
        """Serve messages of the other end until it disconnects. Calls that it has not answered then raise."""
        try:
            while True:
                self._handle(await framing.receive(self._reader))
        except framing.Closed:
            return
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

    def _handle(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == _NOTICE:
            self._handlers[message[1]](*message[2])
        elif kind == _CALL:
            self._answer(*message[1:])
        elif kind == _CANCEL:
            task = self._serving.get(message[1])
            if task is not None:
                task.cancel()
        else:
            self._answered(kind, message[1], message[2])

    def _answer(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            value = self._handlers[name](*arguments)
        except WireError as error:
            self._send((_REFUSAL, number, error.to_wire()))
            return
        if not inspect.isawaitable(value):
            self._send((_ANSWER, number, value))
            return
        task = asyncio.ensure_future(self._answer_later(number, value))
        self._serving[number] = task
        task.add_done_callback(lambda task: self._serving.pop(number, None))

    async def _answer_later(self, number: int, value: Any) -> None:
        try:
            answer = (_ANSWER, number, await value)
        except McpenvError as error:
            wire = error if isinstance(error, WireError) else ExecutionError(str(error))
            answer = (_REFUSAL, number, wire.to_wire())
        except Exception:  # the boundary between processes: the log has the traceback, the caller gets an error
            logger.exception("a call between the processes of the server failed")
            answer = (_REFUSAL, number, ExecutionError("internal error between the server's workers").to_wire())
        self._send(answer)

    def _answered(self, kind: int, number: int, value: Any) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None and kind == _ANSWER:
            undo(value)
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if kind == _ANSWER:
            answer.set_result(value)
        else:
            answer.set_exception(from_wire(value))

    def _send(self, message: tuple[Any, ...]) -> None:
        if not self.closed:
            framing.send(self._writer, message)


def _gone() -> SessionLost:
    return SessionLost("a worker of this server is gone")
