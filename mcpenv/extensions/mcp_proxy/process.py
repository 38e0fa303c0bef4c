"""A process with pipes to it, on an event loop. Waiting for its end needs no thread if the system supports it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

logger = logging.getLogger("mcpenv.upstream")

CHUNK = 65_536
"""Bytes that a reader buffers before the process blocks."""


class Process:
    """A process and its three pipes. Created by `spawn` and by a zygote.

    Args:
        pid: its id. It leads a process group of that id.
        ended: the future of its exit status; negative for a signal.

    Attributes:
        stdin: the pipe that it reads.
        stdout: the pipe that it writes.
        stderr: the pipe for its diagnostics.
    """

    def __init__(
        self,
        pid: int,
        ended: asyncio.Future[int],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit status. Cancelling is safe."""
        return await asyncio.shield(self._ended)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and those descendants that are in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def spawn(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, pass_fds: Sequence[int] = ()
) -> Process:
    """Start a program.

    The system kills it when the thread of the running loop ends, so that it never outlives this process.

    Raises:
        OSError: it cannot be started.
    """
    # In the thread of the loop, because the system ends it with the thread that started it.
    setpriv = shutil.which("setpriv")
    ends_with_parent = [] if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--"]
    popen = subprocess.Popen(  # noqa: ASYNC220 - see above
        [*ends_with_parent, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        pass_fds=pass_fds,
    )
    assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
    ended, connected = _end_of(popen), False
    try:
        stdin, stdout = await writer_of(popen.stdin), await reader_of(popen.stdout)
        process = Process(popen.pid, ended, stdin, stdout, await reader_of(popen.stderr))
        connected = True
    finally:
        if not connected:
            popen.kill()
    return process


async def writer_of(pipe: IO[bytes]) -> asyncio.StreamWriter:
    """Return the stream that writes to a pipe. The stream owns the pipe."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def reader_of(pipe: IO[bytes]) -> asyncio.StreamReader:
    """Return the stream that reads from a pipe. The stream owns the pipe."""
    reader = asyncio.StreamReader(limit=CHUNK)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


async def keep_tail(stderr: asyncio.StreamReader, tail: deque[str]) -> None:
    """Append the lines that a process writes to stderr, until it closes it, and log them."""
    rest = b""
    while chunk := await stderr.read(CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-CHUNK:]
        for line in lines:
            tail.append(line.decode("utf-8", "replace").rstrip())
            logger.debug("%s", tail[-1])
    if rest:
        tail.append(rest.decode("utf-8", "replace"))


def _end_of(popen: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Return the future of the exit status of a child.

    asyncio's own watcher needs a thread for each child in Python 3.11, and belongs to the whole process.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    try:
        descriptor = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
        threading.Thread(target=_await_in_thread, args=(popen, loop, ended), daemon=True).start()
        return ended

    def collect() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended.set_result(popen.wait())

    loop.add_reader(descriptor, collect)
    return ended


def _await_in_thread(
    popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, ended: asyncio.Future[int]
) -> None:
    status = popen.wait()
    with suppress(RuntimeError):  # the loop is closed, so that nothing awaits the future
        loop.call_soon_threadsafe(ended.set_result, status)
