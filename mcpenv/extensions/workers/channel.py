"""Channels: ordered calls and notices in both directions between the hub and a worker, as frames of JSON."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from mcpenv_client.errors import ExecutionError, McpenvError, SessionLost, WireError, from_wire

logger = logging.getLogger("mcpenv")

_LENGTHS = struct.Struct("!II")
_BYTES = "latin-1"
"""The key, and the encoding, of an object that stands for bytes."""

Handlers = Mapping[str, Callable[..., Any]]


def frame(value: Any) -> bytes:
    """Return a value as a frame: two lengths, its JSON, and the ``body`` of an ASGI event as it is.

    Raises:
        TypeError: it has a value that is neither bytes nor JSON's.
    """
    body = b""
    if isinstance(value, dict) and value.get("body"):
        body = bytes(memoryview(value["body"]))
        value = {name: each for name, each in value.items() if name != "body"}
    data = json.dumps(value, ensure_ascii=False, default=_of_bytes).encode("utf-8", "surrogatepass")
    return b"".join((_LENGTHS.pack(len(data), len(body)), data, body))


class FrameReader:
    """The reader of the frames on a stream."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._lengths: tuple[int, int] | None = None

    async def next(self) -> Any:
        """Return the next value. Cancelling loses nothing.

        Raises:
            EOFError: the other end has disconnected.
        """
        try:
            if self._lengths is None:
                self._lengths = _LENGTHS.unpack(await self._stream.readexactly(_LENGTHS.size))
            data = await self._stream.readexactly(sum(self._lengths))
        except OSError as error:
            raise EOFError from error
        length, body_length = self._lengths
        self._lengths = None
        value = json.loads(data[:length], object_hook=_to_bytes)
        if body_length:
            value["body"] = data[length:]
        return value


class Channel:
    """One end of a channel.

    Args:
        handlers: the function for each name that the other end may call. Sync ones run in order of arrival, each before
            the next message is read. Async ones run in a task each.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Handlers) -> None:
        self._frames = FrameReader(reader)
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Future[Any]] = {}
        self.closed = False

    async def call(self, name: str, *args: Any, undo: Callable[[], None] | None = None) -> Any:
        """Call a function of the other end and return its value. Cancelling cancels the function.

        Args:
            undo: called if the caller was cancelled but the function completed.

        Raises:
            WireError: the function raised it, or failed.
            SessionLost: the connection to the other end is lost.
        """
        if self.closed:
            raise _gone()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send("call", number, name, args)
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            self._send("cancel", number)
            answer.add_done_callback(functools.partial(_came_late, undo))
            raise
        return answer.result()

    def tell(self, name: str, *args: Any) -> None:
        """Call a function of the other end that has no value."""
        self._send("call", None, name, args)

    async def drain(self) -> None:
        """Wait until what was sent has left this process, or almost."""
        await self._writer.drain()

    async def serve(self) -> None:
        """Serve the other end until it disconnects. Calls that it has not answered then raise."""
        try:
            while not self.closed:
                kind, number, *rest = await self._frames.next()
                if kind == "call":
                    self._begin(number, *rest)
                elif kind == "cancel":
                    if number in self._serving:
                        self._serving[number].cancel()
                elif kind == "answer":
                    self._waiting.pop(number).set_result(*rest)
                else:
                    self._waiting.pop(number).set_exception(from_wire(*rest))
        except EOFError:
            return
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, fail pending calls and cancel running functions. Idempotent."""
        self.closed = True
        self._writer.close()
        while self._waiting:
            self._waiting.popitem()[1].set_exception(_gone())
        for task in self._serving.values():
            task.cancel()

    def _begin(self, number: int | None, name: str, args: list[Any]) -> None:
        """Call a function, and answer if it is sync."""
        try:
            value = self._handlers[name](*args)
        except Exception as error:  # noqa: BLE001 - the boundary between processes
            self._refuse(number, name, error)
            return
        if number is None:
            return
        if not inspect.isawaitable(value):
            self._answer(number, name, value)
            return
        task = self._serving[number] = asyncio.ensure_future(value)
        task.add_done_callback(functools.partial(self._finish, number, name))

    def _finish(self, number: int, name: str, task: asyncio.Future[Any]) -> None:
        del self._serving[number]
        if task.cancelled():
            self._send("refusal", number, _gone().to_wire())  # to a caller that has stopped waiting
        elif (error := task.exception()) is not None:
            self._refuse(number, name, error)
        else:
            self._answer(number, name, task.result())

    def _answer(self, number: int, name: str, value: Any) -> None:
        try:
            self._send("answer", number, value)
        except TypeError as error:  # it has no JSON form
            self._refuse(number, name, error)

    def _refuse(self, number: int | None, name: str, error: BaseException) -> None:
        """Answer with an error. The log has the traceback of one that is not deliberate."""
        if not isinstance(error, McpenvError):
            logger.error("the call of %r between the processes of the server failed", name, exc_info=error)
            error = ExecutionError("internal error between the server's workers")
        if number is not None:
            wire = error if isinstance(error, WireError) else ExecutionError(str(error))
            self._send("refusal", number, to_jsonable_python(wire.to_wire(), fallback=str))

    def _send(self, *message: Any) -> None:
        if not self.closed:
            self._writer.write(frame(message))


def _of_bytes(value: Any) -> dict[str, str]:
    return {_BYTES: bytes(memoryview(value)).decode(_BYTES)}


def _to_bytes(value: dict[str, Any]) -> Any:
    return value[_BYTES].encode(_BYTES) if value.keys() == {_BYTES} else value


def _came_late(undo: Callable[[], None] | None, answer: asyncio.Future[Any]) -> None:
    if answer.exception() is None and undo is not None:
        undo()


def _gone() -> SessionLost:
    return SessionLost("a worker of this server is gone")
