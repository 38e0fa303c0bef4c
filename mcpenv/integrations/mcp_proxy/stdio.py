"""The transport to a server that is a process: one JSON message a line on stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import TransportOptions
from mcp import ClientSession
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from .delivery import CURRENT, Delivery

logger = logging.getLogger("mcpenv.upstream")

MAX_LINE = 64 * 1024 * 1024
"""Maximum bytes of one message. A longer one ends the connection."""

ENDS_WITHIN_S = 2.0
"""Seconds between closing stdin, SIGTERM and SIGKILL."""

_TAIL_LINES = 30
_CHUNK = 65_536

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The variables of this process that a server's process gets. Others are named in its ``env``."""


class ServerProcess(ClientTransport):
    """A server that is started as a process, and ends with its connection.

    Args:
        command: the program and its arguments.
        env: variables for the process, besides `PASSED_ON`.
        cwd: its working directory.

    Raises:
        FileNotFoundError: there is no such program.

    Attributes:
        dead: True once stdin or stdout was closed. No request is delivered after that.
        fault: the reason if the connection ended although the process runs, else None.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        program = shutil.which(command[0])
        if program is None:
            raise FileNotFoundError(f"there is no program {command[0]!r}")
        self._command = [*_ends_with_parent(), program, *command[1:]]
        self._env = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | dict(env)
        self._cwd = cwd
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process: asyncio.subprocess.Process | None = None
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
        """
        options = transport_options or TransportOptions()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            cwd=self._cwd,
            limit=_CHUNK,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        readers = [
            asyncio.create_task(self._read(process.stdout, received)),
            asyncio.create_task(self._read_stderr(process.stderr)),
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
        """Pass on messages until stdout is closed. A line that is no message is logged and passed over."""
        parts: list[bytes] = []
        size = 0
        async with received:
            while chunk := await stdout.read(_CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    message = _message(b"".join([*parts, line]))
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

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stderr.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK:]
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip()
                self._tail.append(text)
                logger.debug("%s", text)
        if rest:
            self._tail.append(rest.decode("utf-8", "replace"))

    async def _end(self, process: asyncio.subprocess.Process, readers: Sequence[asyncio.Task[None]]) -> None:
        """End the process: close its stdin, then SIGTERM, then SIGKILL to its process group."""
        self.dead = True
        assert process.stdin is not None
        process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
                break
            _signal_group(process.pid, number)
        await process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # children that outlive the server
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
            anyio.BrokenResourceError: the process reads no more. Nothing was written.
        """
        request = CURRENT.get()
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._process.dead or self._writer.transport.is_closing():
            self._process.dead = True  # its stdin may be closed before stdout
            raise anyio.BrokenResourceError
        self._writer.write(data)
        if self._writer.transport.is_closing():  # the pipe refused the first byte
            self._process.dead = True
            raise anyio.BrokenResourceError
        if request is not None:
            request.delivery = Delivery.SENT
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


def _message(line: bytes) -> SessionMessage | None:
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        logger.warning("a server wrote %d bytes to stdout that are no message: %.80r", len(line), line)
        return None


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _ends_with_parent() -> list[str]:
    """Return the prefix of a command that makes Linux kill its process when this one dies, however it dies."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]


__all__ = ["ServerProcess"]
