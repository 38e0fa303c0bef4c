"""The instructions of a step, counted by callgrind: of the whole server, without those of the kernel.

A busy machine does not change them. A server that is counted runs some fifty times slower.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .load import closing, drive, frame
from .pairs import middle
from .serving import Server
from .sessions import address, opened
from .steps import ASYNC, FLOOR

STEPS = 500
"""Of a count."""

COUNTS = 5
"""Of which the middle one is taken: a look of the cycle collector may fall into one."""

BEFORE = 3
"""Steps of each session that come before at least: what is made at the first ones is not counted."""


class Start(Protocol):
    """Start a server under a command."""

    def __call__(self, *, under: Sequence[str]) -> AbstractContextManager[Server]: ...


def counted(start: Start, side: str, sessions: int, before: int = STEPS) -> float:
    """Return the instructions of a step of the tool ``add``, in so many sessions that step one after the other.

    Args:
        side: mcpenv's name or the floor's.
        before: steps that come before, of all sessions together, at least.

    Raises:
        RuntimeError: callgrind is not there, or says nothing.
    """
    if shutil.which("callgrind_control") is None:
        raise RuntimeError("instructions are counted by callgrind, which is not there: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        under = ("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out")
        with start(under=under) as server:
            drive(_steps(server, side, sessions, max(before, BEFORE * sessions)))
        return middle([_total(Path(folder, f"out.{number}")) / STEPS for number in range(1, COUNTS + 1)])


async def _steps(server: Server, side: str, sessions: int, before: int) -> None:
    """Take the steps that are counted, with a dump for each count."""
    sockets = await opened(address(server, side), sessions, reset=side != FLOOR)
    step, mark, turns = frame(ASYNC.step), b"" if side == FLOOR else ASYNC.mark, itertools.cycle(sockets)
    async with closing(sockets):
        for _ in range(before):
            await next(turns).ask(step, mark)
        await _control(server, "--instr=on")
        for _ in range(COUNTS):
            await _control(server, "--zero")
            for _ in range(STEPS):
                await next(turns).ask(step, mark)
            await _control(server, "--dump")
        await _control(server, "--instr=off")


async def _control(server: Server, what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "callgrind_control", what, str(server.pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"callgrind_control {what}: {said.decode(errors='replace')}")


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)$", dump.read_text(errors="replace"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind wrote no total into {dump.name}")
    return int(found[1])
