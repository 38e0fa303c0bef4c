"""The benchmarks without a server (steps in process, new instances), and the cost of sequential clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .control import OPENREWARD
from .effort import Effort
from .load import Round, drive
from .pairs import middle
from .peers import python_of
from .rows import OURS, Row, compare
from .serving import SIDES, Server, mcpenv, status_of
from .steps import OPENENV

BARE = "bare websockets"
BARE_BLOCKING = "bare websockets, blocking"
CLIENT = "a client's step over /ws, async"
BLOCKING_CLIENT = "a client's step over /ws, blocking"
BLOCKING_IN_THREAD = "a client's step over /ws, blocking, not in the main thread"
BUSY = "server's core %"
"""How much of a core the server takes while its clients step."""


class Program:
    """The program of `sides` that plays the requested rounds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self._read("ready")

    def play(self, work: str, seconds: float) -> Round:
        """Play one round of one of its works.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work} {seconds}\n")
        self._process.stdin.flush()
        played: dict[str, Any] = json.loads(self._read("{"))
        latencies = played["latencies"]
        return Round(len(latencies), played["wall_s"], played["cpu_s"], latencies)

    def _read(self, beginning: str) -> str:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            if line.startswith(beginning):
                return line
            said.append(line)
        raise RuntimeError(f"{self._process.args!r} has ended:\n{''.join(said)}")


@dataclass(frozen=True, slots=True)
class ProgramSide:
    """The side of one work of a program."""

    program: Program
    work: str

    async def play(self, seconds: float) -> Round:
        """Play one round."""
        return self.program.play(self.work, seconds)

    def resident_kib(self) -> int:
        """Return the program's memory in KiB."""
        return status_of(self.program.pid, "VmRSS")


class Many:
    """The side of one work of a program of many clients.

    Attributes:
        busy: for each round, how much of a core the server took, in percent.
    """

    def __init__(self, program: Program, work: str, server: Server) -> None:
        self._side = ProgramSide(program, work)
        self._server = server
        self.busy: list[float] = []

    async def play(self, seconds: float) -> Round:
        """Play one round."""
        before = self._server.cpu_s()
        played = await self._side.play(seconds)
        self.busy.append(100 * (self._server.cpu_s() - before) / played.wall_s)
        return played

    def resident_kib(self) -> int:
        """Return the program's memory in KiB."""
        return self._side.resident_kib()


@contextlib.contextmanager
def program(python: str | Path, name: str, *arguments: str) -> Iterator[Program]:
    """Start a program of `sides`, which ends with the block."""
    with subprocess.Popen(
        [python, SIDES / name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def run(effort: Effort) -> list[Row]:
    """Measure steps and instances in process, then clients."""
    with ExitStack() as stack:
        ours = stack.enter_context(program(sys.executable, "inside_mcpenv.py"))
        openenv = stack.enter_context(program(python_of("openenv-0.10.0"), "inside_openenv.py"))
        openreward = stack.enter_context(program(python_of("openreward-0.1.167"), "inside_openreward.py"))
        three = {OURS: ours, OPENENV: openenv, OPENREWARD: openreward}
        works = {
            "in-process step, async tool": ("async", three),
            "in-process step, sync tool": ("sync", {OURS: ours, OPENENV: openenv}),
            "a new instance, 2 tools": ("instance", three),
        }
        rows = [
            drive(compare(path, "1 at a time", {name: ProgramSide(side, work) for name, side in sides.items()}, effort))
            for path, (work, sides) in works.items()
        ]
    return [*rows, *_clients(effort), *_many_clients(effort)]


def _clients(effort: Effort) -> list[Row]:
    """Measure clients that step the same server of mcpenv's."""
    with ExitStack() as stack:
        server = stack.enter_context(mcpenv(SIDES / "mcpenv_tools.py"))
        ours = stack.enter_context(program(sys.executable, "clients_mcpenv.py", server.base))
        openenv = stack.enter_context(program(python_of("openenv-0.10.0"), "clients_openenv.py", server.base))
        bare = ProgramSide(ours, "bare")
        blocking = ProgramSide(ours, "bare.sync")
        in_thread = ProgramSide(ours, "bare.sync.thread")
        return [
            drive(
                compare(
                    path,
                    "1 client",
                    {OURS: ProgramSide(ours, work), **beside, OPENENV: ProgramSide(openenv, work)},
                    effort,
                )
            )
            for path, work, beside in (
                (CLIENT, "EnvClient", {BARE: bare}),
                (BLOCKING_CLIENT, "EnvClient.sync", {BARE_BLOCKING: blocking, BARE: bare}),
                (BLOCKING_IN_THREAD, "EnvClient.sync.thread", {BARE_BLOCKING: in_thread}),
            )
        ]


def _many_clients(effort: Effort) -> list[Row]:
    """Measure how busy many clients keep the server, with a tool that does nothing and with one that computes.

    Clients and server have about one core each.
    """
    in_loop, in_threads = effort.many_clients
    with ExitStack() as stack:
        server = stack.enter_context(mcpenv(SIDES / "mcpenv_computing.py", "--max-sessions", "4096"))
        clients = stack.enter_context(
            program(sys.executable, "many_clients.py", server.base, str(in_loop), str(in_threads))
        )
        rows = []
        for (path, count, works), (call, named) in itertools.product(
            (
                ("steps over /ws of clients in one event loop", in_loop, ("EnvClient", "bare")),
                ("steps over /ws of blocking clients in threads", in_threads, ("EnvClient.sync", "bare.sync")),
            ),
            (("add", ""), ("compute", ", a tool that computes for 0.2 ms")),
        ):
            sides = {
                name: Many(clients, f"{work}:{call}", server) for name, work in zip((OURS, BARE), works, strict=True)
            }
            row = drive(compare(path + named, f"{count:,} clients", sides, effort))
            for name, side in sides.items():
                row.sides[name][BUSY] = middle(side.busy[1:])
            rows.append(row)
        return rows
