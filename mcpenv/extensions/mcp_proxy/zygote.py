"""A process that has imported a Python server, and forks a child for each episode. Requires Linux.

Optional: only ``per_episode: fork`` uses it, and nothing else depends on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from .command import PythonProgram
from .process import GUARD_KILL, GUARDS, Process, keep_tail, reader_of, spawn, writer_of

logger = logging.getLogger("mcpenv.upstream")

_PROGRAM = Path(__file__).parent / "inside" / "zygote_program.py"
_LIMIT = 1 << 20
_TAIL_LINES = 20
_LAST_WORDS_S = 2.0


class ForkRefused(Exception):
    """Raised if a server cannot be forked."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'it cannot be forked: {reason}. Use per_episode "start"')


class Zygote:
    """The process.

    Created by `start`. All methods run on one loop. It ends with this process, and its children end with it.

    Attributes:
        program: the server that it has imported.
    """

    def __init__(self, program: PythonProgram, process: Process, control: socket.socket) -> None:
        self.program = program
        self._process = process
        self._control = control
        self._owner = os.getpid()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._forking: deque[asyncio.Future[tuple[int, asyncio.Future[int]]]] = deque()
        self._children: dict[int, asyncio.Future[int]] = {}
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._stderr = asyncio.create_task(keep_tail(process.stderr, self._tail))
        asyncio.get_running_loop().add_reader(control, self._read)
        self._telling: asyncio.Task[None] | None = None
        self._gone = False

    @classmethod
    async def start(cls, program: PythonProgram, env: Mapping[str, str], timeout_s: float) -> Zygote:
        """Import a server.

        Args:
            env: the variables during the import.
            timeout_s: maximum seconds of the import.

        Raises:
            ForkRefused: it cannot be imported, or cannot be forked afterwards.
        """
        if not hasattr(os, "pidfd_open"):
            raise ForkRefused("that needs Linux")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            number = theirs.fileno()
            command = [program.interpreter, str(_PROGRAM), str(number), program.kind, program.target]
            zygote = cls(program, await spawn(command, env, None, [number]), ours)
        try:
            async with asyncio.timeout(timeout_s):
                await zygote._ready
        except TimeoutError as error:
            zygote.close()
            raise ForkRefused(f"its import takes more than {timeout_s:g} s") from error
        except ForkRefused:
            zygote.close()
            raise
        return zygote

    @property
    def dead(self) -> bool:
        """True if it cannot fork: it has ended, or belongs to another process."""
        return self._gone or self._owner != os.getpid()

    async def fork(self, arguments: list[str], env: Mapping[str, str], cwd: str) -> Process:
        """Return a new process of the server.

        Raises:
            ForkRefused: this process has ended.
        """
        order = json.dumps({"arguments": arguments, "env": dict(env), "cwd": cwd, "guarded": GUARDS}).encode()
        (stdin, to), (out, stdout), (err, stderr) = (os.pipe() for _ in range(3))
        with ExitStack() as ours:
            files = [
                ours.enter_context(os.fdopen(number, mode, 0))
                for number, mode in ((to, "wb"), (out, "rb"), (err, "rb"))
            ]
            try:
                pid, ended = await self._fork(order, [stdin, stdout, stderr])
            finally:
                for descriptor in (stdin, stdout, stderr):
                    os.close(descriptor)
            ours.pop_all()
        to_child, output, errors = files
        streams = await writer_of(to_child), await reader_of(output), await reader_of(errors)
        return Process(pid, ended, *streams, guarded=GUARDS)

    async def _fork(self, order: bytes, pipes: list[int]) -> tuple[int, asyncio.Future[int]]:
        if self._gone:
            raise self._refusal()
        forked: asyncio.Future[tuple[int, asyncio.Future[int]]] = asyncio.get_running_loop().create_future()
        socket.send_fds(self._control, [order], pipes)
        self._forking.append(forked)
        return await forked

    def close(self) -> None:
        """End it, and its children with it. Idempotent."""
        if not self._gone:
            self._detach()
            self._end()
            self._process.signal_group(signal.SIGKILL)

    def _read(self) -> None:
        while not self._gone:
            try:
                data = self._control.recv(_LIMIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._detach()
                self._telling = asyncio.create_task(self._tell_the_end())
                return
            self._heard(json.loads(data))

    def _detach(self) -> None:
        self._gone = True
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()

    async def _tell_the_end(self) -> None:
        """Wait for the last output of the ended process, log it, and fail all pending requests."""
        await asyncio.wait([self._stderr], timeout=_LAST_WORDS_S)
        logger.warning("the zygote of %s has ended:\n%s", self.program.target, "\n".join(self._tail))
        self._end()

    def _heard(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self._ready.set_exception(ForkRefused(message["refused"]))
        elif "ready" in message:
            self._ready.set_result(None)
        elif "pid" in message:
            pid, ended = message["pid"], asyncio.get_running_loop().create_future()
            self._children[pid] = ended
            forked = self._forking.popleft()  # answers come in the order of requests
            if not forked.done():
                forked.set_result((pid, ended))
            else:  # the caller was cancelled
                with suppress(ProcessLookupError):
                    os.kill(pid, GUARD_KILL if GUARDS else signal.SIGKILL)
        else:
            self._children.pop(message["ended"]).set_result(message["status"])

    def _end(self) -> None:
        for child in self._children.values():
            child.set_result(-signal.SIGKILL)
        self._children.clear()
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._forking]
        for each in waiting:
            if not each.done():
                each.set_exception(self._refusal())

    def _refusal(self) -> ForkRefused:
        tail = "\n".join(self._tail)
        return ForkRefused(f"the process that forks it has ended; the end of its stderr:\n{tail}\n")
