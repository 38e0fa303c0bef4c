"""The gain by several workers: a tool that computes, on one worker and on two, by the server's processor time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from .pairs import middle
from .serving import process_cpu_s, tree

WORLD = Path(__file__).with_name("computing_world.py")
SESSIONS = 32
SHARE, FASTER, PER_CPU = 0.45, 1.6, 0.95
"""The goals: each worker's part of the calls; calls with a core each, and per CPU second, to those of one worker."""


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round on one server.

    Attributes:
        per_s: calls a second, on the clock: whatever else runs on the machine takes its part.
        per_core_s: calls in a second of the busiest process's processor time: calls a second, if each had a core.
        per_cpu_s: calls in a second of the server's processor time, that of all its processes.
        shares: each worker's part of the calls.
    """

    per_s: float
    per_core_s: float
    per_cpu_s: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that runs in processes of its own.

    Attributes:
        processes: all of its own.
    """

    url: str
    processes: tuple[int, ...]


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    rounds, calls = (3, 320) if quick else (9, 960)
    print(f"Workers: {SESSIONS} sessions over /ws, a tool that computes for 5 ms of processor time,")
    print(f"{rounds} rounds of {calls} calls on each server in turns, medians, of one worker (1) and of two (2).\n")
    print(f"{'':8}{'calls a second':^26}{'with a core each':^26}{'per CPU second':^26}least share")
    print(f"{'':8}" + f"{'1':>8}{'2':>8}{'ratio':>8}  " * 3)
    figures = {}
    with served(1) as one, served(2) as two:
        for tool in ("burn", "burn_sync"):
            figures[tool] = _compared(tool, (one, two), rounds, calls // SESSIONS)
    return figures


@contextlib.contextmanager
def served(workers: int) -> Iterator[Server]:
    """Start a server of so many workers."""
    command = [sys.executable, "-m", "mcpenv", "run", str(WORLD), "--port", "0", "--log-level", "error"]
    with subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, "Ctrl-C stops the server.\n"))
            found = re.search(r"ws://\S+", said)
            assert found is not None, said
            yield Server(found[0], tuple(tree(process.pid)))
        finally:
            process.terminate()


def _compared(tool: str, servers: tuple[Server, Server], rounds: int, calls: int) -> dict[str, Any]:
    sides: tuple[list[Round], list[Round]] = ([], [])
    for number in range(-1, rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured = asyncio.run(_round(servers[side], tool, calls))
            if number >= 0:
                sides[side].append(measured)
    one, two = sides
    least = min(min(each.shares) for each in two)
    figures: dict[str, Any] = {"least_share": least, "rounds": rounds}
    line = f"{'sync' if tool == 'burn_sync' else 'async':8}"
    for name in ("per_s", "per_core_s", "per_cpu_s"):
        middles = [middle([getattr(each, name) for each in side]) for side in sides]
        ratio = middle([getattr(more, name) / getattr(less, name) for less, more in zip(one, two, strict=True)])
        figures[f"calls_{name}"], figures[f"ratio_{name}"] = middles, ratio
        line += f"{middles[0]:8.1f}{middles[1]:8.1f}{ratio:8.3f}  "
    print(f"{line}{least:.0%}")
    goals = {"ratio_per_core_s": FASTER, "ratio_per_cpu_s": PER_CPU, "least_share": SHARE}
    return {**figures, "goals": goals}


async def _round(server: Server, tool: str, calls: int) -> Round:
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(connect(server.url, compression=None)) for _ in range(SESSIONS)]
        for socket in sockets:
            await _call(socket, "process")
        before, begun = [process_cpu_s(pid) for pid in server.processes], time.perf_counter()
        played = await asyncio.gather(*map(partial(_play, tool=tool, calls=calls), sockets))
        wall_s = time.perf_counter() - begun
        cpu_s = [process_cpu_s(pid) - used for pid, used in zip(server.processes, before, strict=True)]
    workers = [worker for session in played for worker in session]
    shares = tuple(workers.count(worker) / len(workers) for worker in sorted(set(workers)))
    return Round(len(workers) / wall_s, len(workers) / max(cpu_s), len(workers) / sum(cpu_s), shares)


async def _play(socket: ClientConnection, tool: str, calls: int) -> list[int]:
    return [await _call(socket, tool) for _ in range(calls)]


async def _call(socket: ClientConnection, tool: str) -> int:
    await socket.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": {}}}))
    return int(json.loads(await socket.recv())["data"]["observation"]["result"]["data"])
