"""The time from a change of a file to the first answer of the new code, and the requests refused meanwhile.

Two sides, in turns: ``mcpenv dev``, which forks, and ``mcpenv run`` restarted by the command line of watchfiles, as
``--reload`` once was and still is with several workers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .serving import Server, serve

CHANGES = 20
LIMIT_S = 60.0

CODE = '''
from mcpenv import MCPEnvironment


class World{number}(MCPEnvironment):
    """A small world."""

    def __init__(self) -> None:
        @self.tool
        def tell() -> int:
            return {number}
'''


@dataclass
class Side:
    """One of the ways to reload.

    Attributes:
        taken_ms: of each change.
        refused: requests that got no answer, or another one than 200.
    """

    folder: Path
    server: Server
    taken_ms: list[float] = field(default_factory=list)
    refused: int = 0

    def change(self, number: int) -> None:
        """Change the file, and ask until the new code answers."""
        host = self.server.base.removeprefix("http://")
        began = time.perf_counter()
        write(self.folder, number)
        while time.perf_counter() - began < LIMIT_S:
            name = served_name(host)
            if name == f"World{number}":
                self.taken_ms.append((time.perf_counter() - began) * 1e3)
                return
            self.refused += name is None
            time.sleep(0.002)  # a client that never pauses would take the processor from the server
        raise RuntimeError(f"{self.folder}: change {number} was not served within {LIMIT_S:g} s")


def run(quick: bool) -> dict[str, object]:
    """Measure and print."""
    changes = 3 if quick else CHANGES
    with tempfile.TemporaryDirectory(prefix="mcpenv-reloading-") as parent, contextlib.ExitStack() as stack:
        sides = {
            "mcpenv dev": _started(stack, Path(parent) / "forked", _forked),
            "mcpenv run, restarted": _started(stack, Path(parent) / "restarted", _restarted),
        }
        for number in range(1, changes + 1):
            order = list(sides.values())
            for side in order if number % 2 else reversed(order):
                side.change(number)
    figures: dict[str, float] = {"changes": changes}
    for name, side in sides.items():
        figures |= {
            f"{name}, start ms": side.server.start_s * 1e3,
            f"{name}, median ms": statistics.median(side.taken_ms),
            f"{name}, worst ms": max(side.taken_ms),
            f"{name}, requests refused": side.refused,
        }
    for what, figure in figures.items():
        print(f"{what:44}{figure:>10.5g}")
    return {**figures}


def write(folder: Path, number: int) -> None:
    """Write the environment of a number, as an editor does: the new file takes the place of the old one."""
    folder.mkdir(exist_ok=True)
    beside = folder / "environment.py.part"
    beside.write_text(CODE.format(number=number), encoding="utf-8")
    beside.replace(folder / "environment.py")


def served_name(host: str) -> str | None:
    """Return the name of the environment that answers on a new connection; None if none does."""
    connection = http.client.HTTPConnection(host, timeout=LIMIT_S)
    try:
        connection.request("GET", "/metadata")
        answer = connection.getresponse()
        return str(json.loads(answer.read())["name"]) if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _started(stack: contextlib.ExitStack, folder: Path, command: Callable[[Path], list[str]]) -> Side:
    write(folder, 0)
    return Side(folder, stack.enter_context(serve(command(folder))))


def _forked(folder: Path) -> list[str]:
    return [sys.executable, "-m", "mcpenv", "dev", str(folder), "--port", "0", "--log-level", "error"]


def _restarted(folder: Path) -> list[str]:
    # Another port at each restart could not be asked.
    run = f"{sys.executable} -m mcpenv run {folder} --port {_free_port()} --log-level error"
    return [sys.executable, "-m", "watchfiles", "--filter", "python", run, str(folder)]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
