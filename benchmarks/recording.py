"""What recording costs: the same steps with and without it, in process and over ``/ws``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from mcpenv import MCPEnvironment
from mcpenv.recording import Recorder
from mcpenv.targets import load_target

from .pairs import Clock, Measured, Pair, cpu_of, middle, take_turns
from .world import STEPS, Counter

WORLD = Path(__file__).with_name("world.py")
GOAL = 1.05
ENVS = Path(__file__).parent.parent / "envs"
SOLVED = ("ledger_mcp", "workspace_mcp", "maze_mcp")
"""Environments with tasks, whose solutions are played: a database, a folder of files, a game."""


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and give the figures."""
    rounds, episodes = (5, 100) if quick else (21, 400)
    print(f"Recording: episodes of {STEPS} steps, {rounds} rounds of each side in turns, medians (and the spread).")
    print("The step time has the reset in it. Processor time is that of the server, or of this process.\n")
    with tempfile.TemporaryDirectory() as folder:
        pairs = {
            "in process": in_process(Path(folder) / "process", rounds, episodes),
            **{name: solved(Path(folder) / name, name, rounds, max(episodes // 20, 1)) for name in SOLVED},
            "/ws, 1 session": over_ws(Path(folder) / "one", rounds, episodes // 2, 1),
            "/ws, 32 sessions": over_ws(Path(folder) / "many", rounds, episodes, 32),
        }
    print(f"{'':18}{'without':>10}{'with':>10}{'ratio':>8}{'':16}{'CPU without':>13}{'with':>10}{'ratio':>8}")
    return {name: _show(name, pair) for name, pair in pairs.items()}


def in_process(folder: Path, rounds: int, episodes: int) -> Pair:
    """``env.step`` in a loop."""
    plain, recorded = Counter(), Counter()
    with Recorder(folder) as recorder:
        recorder.attach(recorded)

        def play(env: Counter) -> Measured:
            clock = Clock()
            for _ in range(episodes):
                env.reset()
                for _ in range(STEPS):
                    env.call_tool("add_sync", {"by": 1})
            recorder.flush()  # what is written later is no less a cost
            return clock.measured(episodes * STEPS)

        return take_turns((partial(play, plain), partial(play, recorded)), rounds)


def solved(folder: Path, name: str, rounds: int, times: int) -> Pair:
    """In process, the solutions of all tasks of an environment, verified and all, so many times."""
    target = load_target(str(ENVS / name))
    plain, recorded = target.make(), target.make()
    with Recorder(folder) as recorder:
        recorder.attach(recorded)

        def play(env: MCPEnvironment) -> Measured:
            tasks, steps = list(type(env).tasks or ()), 0
            clock = Clock()
            for task in tasks * times:
                env.reset(task=task.id)
                for call in task.oracle or ():
                    env.call_tool(call.tool_name, call.arguments)
                    steps += 1
            recorder.flush()
            return clock.measured(steps)

        return take_turns((partial(play, plain), partial(play, recorded)), rounds)


def over_ws(folder: Path, rounds: int, episodes: int, sessions: int) -> Pair:
    """Frames over sockets to a server in a process of its own."""
    with served() as plain, served("--record", str(folder)) as recorded:

        def play(server: tuple[str, int]) -> Measured:
            url, pid = server
            return asyncio.run(_rounds(url, pid, max(episodes // sessions, 1), sessions))

        return take_turns((partial(play, plain), partial(play, recorded)), rounds)


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, int]]:
    """A server's ``/ws`` and its process."""
    command = [sys.executable, "-m", "mcpenv", "run", str(WORLD), "--port", "0", "--log-level", "error", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, "Ctrl-C stops the server.\n"))
            found = re.search(r"ws://\S+", said)
            assert found is not None, said
            yield found[0], process.pid
        finally:
            process.terminate()


async def _rounds(url: str, pid: int, episodes: int, sessions: int) -> Measured:
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(connect(url, compression=None)) for _ in range(sessions)]
        await asyncio.gather(*(_play(socket, 1) for socket in sockets))
        clock = Clock(lambda: cpu_of(pid))
        await asyncio.gather(*(_play(socket, episodes) for socket in sockets))
        return clock.measured(sessions * episodes * STEPS)


_RESET = json.dumps({"type": "reset", "data": {}})
_STEP = json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}})


async def _play(socket: ClientConnection, episodes: int) -> None:
    for _ in range(episodes):
        await socket.send(_RESET)
        await socket.recv()
        for _ in range(STEPS):
            await socket.send(_STEP)
            answer = await socket.recv()
        assert '"done":true' in str(answer), answer


def _show(name: str, pair: Pair) -> dict[str, Any]:
    walls, cpus = pair.ratios(lambda m: m.wall_s), pair.ratios(lambda m: m.cpu_s)
    wall = [middle([m.wall_s for m in side]) * 1e6 for side in (pair.without, pair.with_it)]
    cpu = [middle([m.cpu_s for m in side]) * 1e6 for side in (pair.without, pair.with_it)]
    print(
        f"{name:18}{wall[0]:7.1f} µs{wall[1]:7.1f} µs{middle(walls):8.3f}  {_spread(walls):14}"
        f"{cpu[0]:10.1f} µs{cpu[1]:7.1f} µs{middle(cpus):8.3f}  {_spread(cpus)}"
    )
    return {
        "step_us": wall,
        "ratio": middle(walls),
        "ratio_quartiles": quartiles(walls),
        "cpu_us": cpu,
        "cpu_ratio": middle(cpus),
        "cpu_ratio_quartiles": quartiles(cpus),
        "rounds": len(walls),
        "goal": GOAL,
    }


def quartiles(values: list[float]) -> tuple[float, float]:
    """Between which the middle half of them lies."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def _spread(values: list[float]) -> str:
    low, high = quartiles(values)
    return f"({low:.3f}-{high:.3f})"
