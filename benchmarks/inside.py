"""The benchmarks without a server (steps in process, new instances), and the cost of sequential clients."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .effort import Effort
from .load import Round, drive
from .peers import python_of
from .rows import OURS, Row, compare
from .serving import SIDES, mcpenv, status_of
from .steps import OPENENV

BARE = "bare websockets"
BARE_BLOCKING = "bare websockets, blocking"
CLIENT = "a client's step over /ws, async"
BLOCKING_CLIENT = "a client's step over /ws, blocking"
BLOCKING_IN_THREAD = "a client's step over /ws, blocking, not in the main thread"


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
        works = {
            "in-process step, async tool": "async",
            "in-process step, sync tool": "sync",
            "a new instance, 2 tools": "instance",
        }
        rows = [
            drive(
                compare(
                    path,
                    "1 at a time",
                    {OURS: ProgramSide(ours, work), OPENENV: ProgramSide(openenv, work)},
                    effort,
                )
            )
            for path, work in works.items()
        ]
    return [*rows, *_clients(effort)]


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
