"""The cost of recording: the same steps with and without it, in process and over ``/ws``.

Environments with tasks play and verify solutions. A tool that does nothing gives the maximum cost. A round is a few
episodes and the two sides alternate, because the machine's speed varies from one tenth of a second to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

from mcpenv import MCPEnvironment
from mcpenv.targets.target import load_target
from mcpenv.trajectories import Recorder

from .pairs import Clock, Measured, Pair, middle, take_turns
from .serving import Server, mcpenv, process_cpu_s
from .world import STEPS, Counter

T = TypeVar("T")

WORLD = Path(__file__).with_name("world.py")
GOAL = 1.05
ENVS = Path(__file__).parent.parent / "envs"
SOLVED = ("ledger_mcp", "workspace_mcp", "maze_mcp")
"""Environments with tasks, whose solutions are played: a database, a folder of files, a game."""

SESSIONS = 4
"""That play them at once over ``/ws``."""

AT_ONCE, AT_ONCE_IN_PROCESS = 2, 16
"""Episodes of a round: the machine is faster and slower from one tenth of a second to the next. In process, where a
round waits for what is written later, a few more."""

Play = Sequence[str]
"""The frames of one episode: its reset, its steps, and its end if no step is one."""


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    rounds, over_sockets = (15, 41) if quick else (150, 330)
    print(f"Recording: {rounds} ({over_sockets} over /ws) rounds of each side in turns, medians (and the quartiles).")
    print("The step time has the reset in it. Processor time is that of the server, or of this process.\n")
    with tempfile.TemporaryDirectory() as folder:
        record = (Path(folder) / str(number) for number in itertools.count())
        pairs = {f"{name}, in process": solved(next(record), name, rounds) for name in SOLVED}
        for name in SOLVED:
            pairs[f"{name}, /ws, {SESSIONS} sessions"] = solved_over_ws(next(record), name, over_sockets, SESSIONS)
        pairs["no work, in process"] = in_process(next(record), rounds)
        pairs["no work, /ws, 1 session"] = over_ws(next(record), over_sockets, 1)
        pairs["no work, /ws, 32 sessions"] = over_ws(next(record), over_sockets, 32)
    print(f"{'':32}{'without':>10}{'with':>10}{'ratio':>8}{'':16}{'CPU without':>13}{'with':>10}{'ratio':>8}")
    return {name: _show(name, pair) for name, pair in pairs.items()}


def in_process(folder: Path, rounds: int) -> Pair:
    """Measure ``env.step`` in a loop."""
    plain, recorded = Counter(), Counter()
    with Recorder(folder) as recorder:
        recorder.attach(recorded)

        def play(env: Counter, number: int) -> Measured:
            clock = Clock()
            for _ in range(AT_ONCE_IN_PROCESS):
                env.reset()
                for _ in range(STEPS):
                    env.call_tool("add_sync", {"by": 1})
            recorder.flush()  # what is written later is no less a cost
            return clock.measured(AT_ONCE_IN_PROCESS * STEPS)

        return take_turns((partial(play, plain), partial(play, recorded)), rounds)


def solved(folder: Path, name: str, rounds: int) -> Pair:
    """Measure the solutions of an environment's tasks in process, with verification."""
    target = load_target(str(ENVS / name))
    plain, recorded = target.make(), target.make()
    tasks = list(type(plain).tasks or ())
    with Recorder(folder) as recorder:
        recorder.attach(recorded)

        def play(env: MCPEnvironment, number: int) -> Measured:
            steps = 0
            clock = Clock()
            for task in _in_round(number, tasks, AT_ONCE_IN_PROCESS):
                env.reset(task=task.id)
                for call in task.oracle or ():
                    env.call_tool(call.tool_name, call.arguments)
                    steps += 1
                env.end()
            recorder.flush()
            return clock.measured(steps)

        return take_turns((partial(play, plain), partial(play, recorded)), rounds)


def solved_over_ws(folder: Path, name: str, rounds: int, sessions: int) -> Pair:
    """Measure the solutions over sockets, in so many concurrent sessions."""
    env = load_target(str(ENVS / name)).make()
    plays = [
        [
            _frame("reset", {"task": task.id}),
            *(_call(call.tool_name, call.arguments) for call in task.oracle or ()),
            _frame("end", {}),
        ]
        for task in type(env).tasks or ()
    ]
    env.close()
    return _over_ws(ENVS / name, folder, rounds, plays, sessions)


def over_ws(folder: Path, rounds: int, sessions: int) -> Pair:
    """Measure steps of a tool that does nothing, over sockets to a server in a process of its own."""
    play = [_frame("reset", {}), *[_call("add", {"by": 1})] * STEPS]
    return _over_ws(WORLD, folder, rounds, [play], sessions)


def _over_ws(target: Path, folder: Path, rounds: int, plays: Sequence[Play], sessions: int) -> Pair:
    with mcpenv(target) as plain, mcpenv(target, "--record", str(folder)) as recorded, asyncio.Runner() as runner:
        with _sockets(runner, plain, sessions) as of_plain, _sockets(runner, recorded, sessions) as of_recorded:

            async def play(server: Server, sockets: Sequence[ClientConnection], number: int) -> Measured:
                played = _in_round(number, plays, AT_ONCE)
                steps = sessions * sum(frame.startswith(_STEP) for play in played for frame in play)
                clock = Clock(lambda: process_cpu_s(server.pid))
                await asyncio.gather(*(_play(socket, played) for socket in sockets))
                return clock.measured(steps)

            return take_turns(
                (
                    lambda number: runner.run(play(plain, of_plain, number)),
                    lambda number: runner.run(play(recorded, of_recorded, number)),
                ),
                rounds,
            )


def _in_round(number: int, plays: Sequence[T], count: int) -> list[T]:
    """Return the next ones, and after the last the first again."""
    return [plays[(number * count + each) % len(plays)] for each in range(count)]


@contextlib.contextmanager
def _sockets(runner: asyncio.Runner, server: Server, sessions: int) -> Iterator[Sequence[ClientConnection]]:
    async def opened() -> Sequence[ClientConnection]:
        return [await connect(server.ws, compression=None) for _ in range(sessions)]

    async def close() -> None:
        await asyncio.gather(*(socket.close() for socket in sockets))

    sockets = runner.run(opened())
    try:
        yield sockets
    finally:
        runner.run(close())


_STEP = '{"type": "step"'


def _frame(kind: str, data: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def _call(tool: str, arguments: dict[str, Any]) -> str:
    return _frame("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})


async def _play(socket: ClientConnection, plays: Sequence[Play]) -> None:
    for play in plays:
        for frame in play:
            await socket.send(frame)
            answer = str(await socket.recv())
            assert answer.startswith('{"type":"observation"'), answer
        assert '"done":true' in answer, answer


def _show(name: str, pair: Pair) -> dict[str, Any]:
    walls, cpus = pair.ratios(lambda m: m.wall_s), pair.ratios(lambda m: m.cpu_s)
    wall = [middle([m.wall_s for m in side]) * 1e6 for side in (pair.without, pair.with_it)]
    cpu = [middle([m.cpu_s for m in side]) * 1e6 for side in (pair.without, pair.with_it)]
    print(
        f"{name:32}{wall[0]:7.1f} µs{wall[1]:7.1f} µs{middle(walls):8.3f}  {_spread(walls):14}"
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
    """Return the quartiles."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def _spread(values: list[float]) -> str:
    low, high = quartiles(values)
    return f"({low:.3f}-{high:.3f})"
