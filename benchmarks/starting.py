"""The time of imports, and of servers from their start to their first answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from .effort import SMOKE, Effort
from .mcp_calls import USUAL, VERIFIERS, fastmcp, verifiers
from .pairs import middle
from .peers import python_of
from .rows import OURS, Row, Spread
from .serving import SIDES, Server, floor, mcpenv
from .steps import FLOOR, OPENENV, openenv

WALL, PROCESSOR = "wall ms", "CPU ms"
CLIENT_FLOOR = "pydantic + websockets"

Took = tuple[float, float]
"""Milliseconds on the clock, and of processor time."""


def run(effort: Effort) -> list[Row]:
    """Measure imports of the client and of the server, and starts of servers."""
    here = Path(sys.executable)
    imports = {
        "import of the client": {
            OURS: (here, "from mcpenv_client import EnvClient"),
            CLIENT_FLOOR: (here, "import pydantic, websockets.asyncio.client"),
            OPENENV: (python_of("openenv-0.10.0"), "import openenv.core"),
            "fastmcp.Client": (here, "from fastmcp import Client"),
        },
        "import of what environments are written with": {
            OURS: (here, "from mcpenv import MCPEnvironment"),
            OPENENV: (python_of("openenv-0.10.0"), "import openenv.core.env_server.mcp_environment"),
            VERIFIERS: (python_of("verifiers-0.4.0"), "import verifiers.v1"),
            USUAL: (here, "from fastmcp import FastMCP"),
        },
    }
    rows = [
        _in_turns(
            path,
            {name: partial(imported, python, code) for name, (python, code) in sides.items()},
            effort,
        )
        for path, sides in imports.items()
    ]
    servers: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
        OURS: lambda: mcpenv(SIDES / "mcpenv_tools.py"),
        FLOOR: floor,
        OPENENV: openenv,
        VERIFIERS: lambda: verifiers(5, "async"),
        USUAL: lambda: fastmcp(5, "async", "usual"),
    }
    starts = {name: partial(started, server) for name, server in servers.items()}
    return [*rows, _in_turns("start of a server until it answers", starts, effort)]


def imported(python: Path, code: str) -> Took:
    """Return the cost of an import in a process of its own, less that of the process without it."""
    taken = [_ran(python, line) for line in ("pass", code)]
    return taken[1][0] - taken[0][0], taken[1][1] - taken[0][1]


def _ran(python: Path, code: str) -> Took:
    began = time.perf_counter()
    # Packages are installed with their bytecode; these may stand in a folder of sources, which gets it here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([python, "-c", code], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{python} -c {code!r} ended with {process.returncode}")
    return wall_s * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def started(server: Callable[[], contextlib.AbstractContextManager[Server]]) -> Took:
    """Return the cost of a server's start."""
    with server() as running:
        return running.start_s * 1e3, running.cpu_s() * 1e3


def _in_turns(path: str, sides: Mapping[str, Callable[[], Took]], effort: Effort) -> Row:
    taken = _side_by_side(sides) if effort is SMOKE else _one_by_one(sides, effort.starts)
    row = Row(path, "1")
    for name, of in taken.items():
        row.sides[name] = {WALL: middle([wall for wall, _ in of]), PROCESSOR: middle([cpu for _, cpu in of])}
        if name != OURS:
            pairs = list(zip(taken[OURS], of, strict=True))
            row.ratios[name] = {
                WALL: Spread.of([ours[0] / theirs[0] for ours, theirs in pairs]),
                PROCESSOR: Spread.of([ours[1] / theirs[1] for ours, theirs in pairs]),
            }
    return row


def _one_by_one(sides: Mapping[str, Callable[[], Took]], times: int) -> dict[str, list[Took]]:
    taken: dict[str, list[Took]] = {name: [] for name in sides}
    for number in range(times + 1):
        for name, side in sides.items():
            took = side()
            if number > 0:  # at the first time it may have to compile
                taken[name].append(took)
    return taken


def _side_by_side(sides: Mapping[str, Callable[[], Took]]) -> dict[str, list[Took]]:
    """Start two at a time, which is faster and less exact."""
    with ThreadPoolExecutor(2) as threads:
        begun = {name: threads.submit(side) for name, side in sides.items()}
        return {name: [side.result()] for name, side in begun.items()}
