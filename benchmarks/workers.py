"""What several workers bring: a tool that computes, on one worker and on two, by the server's processor time."""

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

from .pairs import cpu_of, middle

WORLD = Path(__file__).with_name("computing_world.py")
SESSIONS = 32
SHARE, FASTER, PER_CPU = 0.45, 1.6, 0.95
"""The goals: each worker's part of the calls; calls per second, and per second of processor time, to those of one worker."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round on one server.

    Attributes:
        per_s: calls a second.
        per_cpu_s: calls in a second of the server's processor time, that of all its processes.
        shares: each worker's part of the calls.
    """

    per_s: float
    per_cpu_s: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        processes: all of its own.
    """

    url: str
    processes: tuple[int, ...]


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and give the figures."""
    rounds, calls = (3, 320) if quick else (9, 960)
    print(f"Workers: {SESSIONS} sessions over /ws, a tool that computes for 5 ms of processor time,")
    print(f"{rounds} rounds of {calls} calls on each server in turns, medians. Processor time is the whole server's.\n")
    print(f"{'':8}{'1 worker':>14}{'2 workers':>14}{'ratio':>8}{'per CPU s: 1':>16}{'2':>9}{'ratio':>8}   shares")
    figures = {}
    with served(1) as one, served(2) as two:
        for tool in ("burn", "burn_sync"):
            figures[tool] = _compared(tool, (one, two), rounds, calls // SESSIONS)
    return figures


@contextlib.contextmanager
def served(workers: int) -> Iterator[Server]:
    """A server of so many workers."""
    command = [sys.executable, "-m", "mcpenv", "run", str(WORLD), "--port", "0", "--log-level", "error"]
    with subprocess.Popen([*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, "Ctrl-C stops the server.\n"))
            found = re.search(r"ws://\S+", said)
            assert found is not None, said
            yield Server(found[0], (process.pid, *_children(process.pid)))
        finally:
            process.terminate()


def _children(pid: int) -> list[int]:
    """The processes that a process has started (Linux)."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def _compared(tool: str, servers: tuple[Server, Server], rounds: int, calls: int) -> dict[str, Any]:
    sides: tuple[list[Round], list[Round]] = ([], [])
    for number in range(-1, rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured = asyncio.run(_round(servers[side], tool, calls))
            if number >= 0:
                sides[side].append(measured)
    one, two = sides
    per_s = [middle([each.per_s for each in side]) for side in sides]
    per_cpu_s = [middle([each.per_cpu_s for each in side]) for side in sides]
    faster = middle([more.per_s / less.per_s for less, more in zip(one, two, strict=True)])
    per_cpu = middle([more.per_cpu_s / less.per_cpu_s for less, more in zip(one, two, strict=True)])
    least = min(min(each.shares) for each in two)
    print(
        f"{'sync' if tool == 'burn_sync' else 'async':8}{per_s[0]:12.1f}/s{per_s[1]:12.1f}/s{faster:8.2f}"
        f"{per_cpu_s[0]:16.1f}{per_cpu_s[1]:9.1f}{per_cpu:8.3f}   >= {least:.0%}"
    )
    return {
        "calls_per_s": per_s,
        "ratio": faster,
        "goal": FASTER,
        "calls_per_cpu_s": per_cpu_s,
        "cpu_ratio": per_cpu,
        "cpu_goal": PER_CPU,
        "least_share": least,
        "share_goal": SHARE,
        "rounds": rounds,
    }


async def _round(server: Server, tool: str, calls: int) -> Round:
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(connect(server.url, compression=None)) for _ in range(SESSIONS)]
        workers = [await _call(socket, "process") for socket in sockets]
        cpu, begun = sum(map(cpu_of, server.processes)), time.perf_counter()
        await asyncio.gather(*map(partial(_play, tool=tool, calls=calls), sockets))
        wall_s, cpu_s = time.perf_counter() - begun, sum(map(cpu_of, server.processes)) - cpu
    made = SESSIONS * calls
    shares = tuple(workers.count(worker) / SESSIONS for worker in sorted(set(workers)))
    return Round(made / wall_s, made / cpu_s, shares)


async def _play(socket: ClientConnection, tool: str, calls: int) -> None:
    for _ in range(calls):
        await _call(socket, tool)


async def _call(socket: ClientConnection, tool: str) -> int:
    await socket.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": {}}}))
    return int(json.loads(await socket.recv())["data"]["observation"]["result"]["data"])
