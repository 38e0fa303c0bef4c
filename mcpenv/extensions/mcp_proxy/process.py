"""A process with pipes to it, on an event loop. Waiting for its end needs no thread if the system supports it."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

logger = logging.getLogger("mcpenv.upstream")

_GUARD = Path(__file__).parent / "inside" / "guard.py"

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


def _has_subreapers() -> bool:
    """Return True if orphans can become children of a guard: on Linux, where nothing filters the system call."""
    if sys.platform != "linux":
        return False
    prctl, now = ctypes.CDLL(None).prctl, ctypes.c_int()
    # Set to what it is already, so that only the permission is tried.
    return not prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(now)) and not prctl(_PR_SET_CHILD_SUBREAPER, now.value)


GUARDS = _has_subreapers()
"""True if this system can end all descendants of a process with it."""

GUARD_KILL = signal.SIGUSR1 if GUARDS else signal.SIGTERM
"""The signal at which a guard kills all processes of its command. Not sent where there are no guards."""

CHUNK = 65_536
"""Bytes that a reader buffers before the process blocks."""


class Process:
    """A process and its three pipes. Created by `spawn` and by a zygote.

    Args:
        pid: its id. It leads a process group of that id.
        guarded: True if it is the guard of the server, in `inside/guard.py`.
        ended: the future of its exit status; negative for a signal.

    Attributes:
        stdin: the pipe that it reads.
        stdout: the pipe that it writes.
        stderr: the pipe for its diagnostics.
        home: a folder to delete after the process has ended, or None.
    """

    def __init__(
        self,
        pid: int,
        ended: asyncio.Future[int],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        *,
        guarded: bool = False,
    ) -> None:
        self.pid = pid
        self._guarded = guarded
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.home: Path | None = None
        self._ended = ended

    @property
    def program(self) -> int:
        """The id of the server's own process.

        Raises:
            OSError: it has ended.
        """
        if not self._guarded:
            return self.pid
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        if not children:
            raise ProcessLookupError("the server has ended")
        return int(children[0])

    @property
    def returncode(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait until the process has ended, and return its exit status. Cancelling is safe."""
        return await asyncio.shield(self._ended)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and those descendants that are in its group; with a guard SIGKILL to all."""
        if self._guarded and number == signal.SIGKILL:
            number = GUARD_KILL  # the guard must live to end them
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    pass_fds: Sequence[int] = (),
    *,
    guarded: bool = True,
) -> Process:
    """Start a program.

    The system kills it when the thread of the running loop ends, so that it never outlives this process.

    Args:
        guarded: end all its descendants with it, also those in sessions of their own, where the system has guards.

    Raises:
        OSError: it cannot be started.
    """
    # In the thread of the loop, because the system ends it with the thread that started it.
    ends_with_parent = guard() if guarded else []
    guarded = bool(ends_with_parent)
    if not guarded and (setpriv := shutil.which("setpriv")) is not None:
        ends_with_parent = [setpriv, "--pdeathsig", "KILL", "--"]
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
        process = Process(popen.pid, ended, stdin, stdout, await reader_of(popen.stderr), guarded=guarded)
        connected = True
    finally:
        if not connected:
            popen.kill()
    return process


def guard() -> list[str]:
    """Return what to put before the words of a command, so that all that it starts ends with it and this process.

    The processes of a command end when it ends, on `GUARD_KILL`, and when the thread that starts it ends. Where the
    system has no guards (`GUARDS`), there are no words, and the log says so once. Do not send SIGKILL to a guard,
    which has to end the others.
    """
    if GUARDS:
        return [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid())]
    _say_unguarded()
    return []


@functools.cache
def _say_unguarded() -> None:
    logger.warning("on this system, processes that a command starts in sessions of their own may outlive it")


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
