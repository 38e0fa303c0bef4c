"""The cost of a proxy: a step over ``/ws`` with a server in a process behind it, beside the same server mounted.

A round is an episode of one session, and the two sides alternate. The figure of a round is the median of its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from .pairs import Measured, Pair, middle, take_turns
from .serving import SIDES, Server, mcpenv, process_cpu_s

COUNTER = SIDES / "counter.py"
STEPS = 100
BUDGET_MS = 1.2

_RESET = json.dumps({"type": "reset", "data": {}})
_STEP = json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}})


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    rounds = 10 if quick else 60
    print(f"A proxied step over /ws: {rounds} rounds of {STEPS} steps of each side in turns, medians.\n")
    behind = f"mcp:{shlex.join([sys.executable, str(COUNTER)])}"
    with mcpenv(f"{COUNTER}:Mounted") as mounted, mcpenv(behind) as proxied, asyncio.Runner() as runner:
        with _socket(runner, mounted) as one, _socket(runner, proxied) as other:
            pair = take_turns(
                (
                    lambda _: runner.run(_episode(mounted, one)),
                    lambda _: runner.run(_episode(proxied, other)),
                ),
                rounds,
            )
    return _show(pair)


@contextlib.contextmanager
def _socket(runner: asyncio.Runner, server: Server) -> Iterator[ClientConnection]:
    async def opened() -> ClientConnection:
        return await connect(server.ws, compression=None)

    socket = runner.run(opened())
    try:
        yield socket
    finally:
        runner.run(socket.close())


async def _episode(server: Server, socket: ClientConnection) -> Measured:
    await _exchange(socket, _RESET)
    cpu_s = process_cpu_s(server.pid)
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        await _exchange(socket, _STEP)
        times.append(time.perf_counter() - began)
    return Measured(middle(times), (process_cpu_s(server.pid) - cpu_s) / STEPS)


async def _exchange(socket: ClientConnection, text: str) -> None:
    await socket.send(text)
    answer = str(await socket.recv())
    assert answer.startswith('{"type":"observation"'), answer


def _show(pair: Pair) -> dict[str, Any]:
    mounted, proxied = (middle([each.wall_s for each in side]) * 1e3 for side in (pair.without, pair.with_it))
    over = middle([one.wall_s - other.wall_s for one, other in zip(pair.with_it, pair.without, strict=True)]) * 1e3
    cpu = [middle([each.cpu_s for each in side]) * 1e3 for side in (pair.without, pair.with_it)]
    print(f"{'':12}{'p50':>10}{'CPU of mcpenv':>16}")
    print(f"{'mounted':12}{mounted:7.3f} ms{cpu[0]:13.3f} ms")
    print(f"{'proxied':12}{proxied:7.3f} ms{cpu[1]:13.3f} ms")
    print(f"\nThe proxy adds {over:.3f} ms; the budget is {BUDGET_MS} ms.")
    return {"mounted_ms": mounted, "proxied_ms": proxied, "added_ms": over, "cpu_ms": cpu, "budget_ms": BUDGET_MS}
