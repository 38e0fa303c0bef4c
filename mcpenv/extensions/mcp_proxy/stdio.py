"""The transport to a server that is a process: one JSON message a line on stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from .delivery import CURRENT
from .paths import HOME_SEEN, PathNames
from .process import CHUNK, Process, keep_tail
from .texts import well_formed_json
from .workspace import remove_in_background

logger = logging.getLogger("mcpenv.upstream")

MAX_LINE = 64 * 1024 * 1024
"""Maximum bytes of one message. A longer one ends the connection."""

ENDS_WITHIN_S = 2.0
"""Seconds between closing stdin, SIGTERM and SIGKILL."""

_TAIL_LINES = 30


class ServerProcess(ClientTransport):
    """A server that runs as a process and ends with its connection.

    Args:
        start: the function that starts the process.
        names: the names of the folders of the episode for the server and for agents.

    Attributes:
        dead: True once stdin or stdout was closed. No later request is delivered.
        fault: the reason for the end of the connection if the process still runs, else None.
    """

    def __init__(self, start: Callable[[], Awaitable[Process]], names: PathNames | None) -> None:
        self._start = start
        self.names = [] if names is None else [names]
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process: Process | None = None
        self.dead = False
        self.fault: str | None = None

    @property
    def stderr_tail(self) -> str:
        """The last lines that the process wrote to stderr."""
        return "\n".join(self._tail)

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the process runs."""
        return None if self._process is None else self._process.returncode

    async def exited(self) -> None:
        """Wait until a process that has closed its stdout has ended too, at most `ENDS_WITHIN_S` seconds."""
        if self._process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), ENDS_WITHIN_S)

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Any
    ) -> AsyncGenerator[ClientSession, None]:
        """Start the process, and yield a session with it.

        Raises:
            OSError: the program cannot be started.
            ForkRefused: it cannot be forked.
        """
        options = transport_options or TransportOptions()
        self._process = process = await self._start()
        if process.home is not None:
            self.names = [*self.names, PathNames(process.home, isolated=False, seen=HOME_SEEN)]
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        readers = [
            asyncio.create_task(self._read(process.stdout, received)),
            asyncio.create_task(keep_tail(process.stderr, self._tail)),
        ]
        try:
            async with options.session_class(incoming, _Stdin(process.stdin, self), **session_kwargs) as session:
                yield session
        finally:
            incoming.close()
            await asyncio.shield(asyncio.ensure_future(self._end(process, readers)))

    async def _read(
        self, stdout: asyncio.StreamReader, received: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """Pass on messages until stdout is closed. A line that is not a message is logged and skipped."""
        parts: list[bytes] = []
        size = 0
        async with received:
            while chunk := await stdout.read(CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    message = self._message(b"".join([*parts, line]))
                    parts, size = [], 0
                    if message is not None:
                        try:
                            await received.send(message)
                        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                            self.dead = True
                            return
                parts.append(rest)
                size += len(rest)
                if size > MAX_LINE:
                    self.fault = f"it wrote a message of more than {MAX_LINE} bytes"
                    break
            self.dead = True

    def _message(self, line: bytes) -> SessionMessage | None:
        if not line.strip():
            return None
        try:
            renamed = well_formed_json(line)
            for names in self.names:
                renamed = names.from_server(renamed)
            return SessionMessage(jsonrpc_message_adapter.validate_json(renamed, by_name=False))
        except ValueError:
            logger.warning("a server wrote %d bytes to stdout that are no message: %.80r", len(line), line)
            return None

    async def _end(self, process: Process, readers: Sequence[asyncio.Task[None]]) -> None:
        """End the process: close its stdin, then SIGTERM, then SIGKILL to its process group."""
        self.dead = True
        process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
                break
            process.signal_group(number)
        await process.wait()
        process.signal_group(signal.SIGKILL)  # children that outlive the server
        if process.home is not None:
            remove_in_background(process.home)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


class _Stdin(anyio.abc.ObjectSendStream[SessionMessage]):
    """The session's stream to the process. It sends in the caller's task, and notes the delivery there."""

    def __init__(self, writer: asyncio.StreamWriter, process: ServerProcess) -> None:
        self._writer = writer
        self._process = process

    async def send(self, item: SessionMessage) -> None:
        """Write one message.

        Raises:
            anyio.BrokenResourceError: the process has closed its stdin. Nothing was written.
        """
        request = CURRENT.get()
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        for names in self._process.names:
            data = names.to_server(data)
        if self._process.dead or self._writer.transport.is_closing():
            self._process.dead = True  # its stdin may be closed before stdout
            raise anyio.BrokenResourceError
        self._writer.write(data + b"\n")
        if self._writer.transport.is_closing():  # the pipe refused the first byte
            self._process.dead = True
            raise anyio.BrokenResourceError
        if request is not None:
            request.sent = True
        try:
            await self._writer.drain()
        except ConnectionError as error:
            self._process.dead = True
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close stdin."""
        self._writer.close()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()
