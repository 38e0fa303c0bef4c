"""The stages of a step over ``/ws``, in microseconds of the server's processor time, and the saving by fewer frames.

py-spy samples the functions of a server under load some thousand times a second. The shares are multiplied by the
processor time that a step takes without sampling.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from .load import closing, drive, frame, open_websocket
from .pairs import middle
from .peers import cache, python_of
from .serving import SIDES, Server, mcpenv
from .steps import ASYNC, RESET, stepping

CLIENTS = 32
PER_S = 1_000
"""How often py-spy looks."""

AHEAD = (1, 16)
"""Frames that one client sends before it waits for an answer."""

IDLE = "_Thread._work"
"""A worker that waits; no tool here runs in one."""

OTHER = "event loop, and the rest"
STAGES = (
    ("frame in", r"websocket_protocol\.py|protocol\.py:decode_frame|values\.py"),
    ("frame in", r"connection\.py:Connection\.(_read|_decoded)|frames\.py:Arrival"),
    ("encode", r"protocol\.py:(encode_|observation_data)"),
    ("dispatch", r"frames\.py:answer_"),
    ("frame out", r"locks\.py"),
    # uvicorn's and websockets' own, where they read and write.
    ("frame out", r"websockets_sansio_impl\.py:.*\.send|protocol\.py:.*(send|state)|frames\.py:.*(serialize|new)"),
    ("frame in", r"(websockets_sansio_impl|protocol|frames|streams|queues)\.py"),
    (
        "validate, run the tool",
        r"pipeline\.py:(run_tool|ToolRun)|signatures\.py|definition\.py|context\.py|mcpenv_tools\.py:.*add",
    ),
    ("result", r"results\.py|tools\.py|records\.py:ToolOutcome\.returned"),
    ("score", r"mcpenv_tools\.py:Tools\.score|records\.py:(Reward|finite|total|ToolOutcome)"),
    ("score", r"scoring\.py"),
    ("record", r"episode\.py:Episode\.(add|judge|count_step)|records\.py:(ToolCall|StepRecord)"),
    ("encode", r"observations\.py|codec\.py"),
    ("dispatch", r"(connection|session|execution|lock|step|pipeline)\.py"),
)
"""Which functions (``FILE:QUALIFIED NAME``) belong to which stage; the first that matches."""


def run(quick: bool) -> dict[str, object]:
    """Measure and print."""
    with mcpenv(SIDES / "mcpenv_tools.py") as server:
        stages = drive(_stages(server, 3.0 if quick else 20.0))
        ahead = drive(_ahead(server, 3 if quick else 9))
    done = subprocess.run([python_of("frames"), SIDES / "frames.py"], capture_output=True, text=True, check=True)
    frames: dict[str, Any] = json.loads(done.stdout)
    for name, value in stages.items():
        print(f"{name:32}{value:8.1f} µs")
    for count, value in ahead.items():
        print(f"{count:>4} frames before an answer: {value:.1f} µs a step")
    print(json.dumps(frames, indent=1, ensure_ascii=False))
    return {"stage µs": stages, "frames before an answer, µs a step": ahead, "frames": frames}


async def _stages(server: Server, seconds: float) -> dict[str, float]:
    """Return the microseconds of each stage."""
    async with AsyncExitStack() as stack:
        sockets = [await open_websocket(server.ws) for _ in range(CLIENTS)]
        await stack.enter_async_context(closing(sockets))
        side = stepping(server, sockets, ASYNC, ASYNC.mark)
        cpu_us = middle([(await side.play(0.5)).cpu_us for _ in range(5)])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spy = cache() / "py-spy" / "bin" / "py-spy"
        python_of("py-spy")
        looking = await asyncio.create_subprocess_exec(
            spy, "record", "--pid", str(server.pid), "--rate", str(PER_S), "--duration", str(int(seconds)),
            "--nonblocking", "--format", "raw", "--output", str(folder / "stacks"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        while looking.returncode is None:
            await side.play(1.0)
        if looking.returncode != 0:
            assert looking.stderr is not None
            raise RuntimeError(f"py-spy: {(await looking.stderr.read()).decode()}")
        seen = _seen((folder / "stacks").read_text())
    whole = sum(seen.values())
    names = list(dict.fromkeys([*(name for name, _ in STAGES), OTHER]))
    return {**{name: seen[name] / whole * cpu_us for name in names}, "a step": cpu_us}


def _seen(stacks: str) -> Counter[str]:
    """Count each stage in lines ``FRAME;FRAME;... COUNT``, where a frame is ``NAME (FILE:LINE)``."""
    found: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        if IDLE not in stack:
            found[stage_of(stack)] += int(count)
    return found


def stage_of(stack: str) -> str:
    """Return the stage of the innermost function."""
    innermost = stack.rpartition(";")[2]
    match = re.fullmatch(r"(?P<name>.+) \((?:.*/)?(?P<file>[^/:]+\.py)(?::\d+)?\)", innermost)
    if match is None:
        return OTHER
    function = f"{match['file']}:{match['name']}"
    return next((stage for stage, functions in STAGES if re.match(functions, function)), OTHER)


async def _ahead(server: Server, rounds: int) -> dict[str, float]:
    """Return the server's microseconds for a step of one client that sends so many frames ahead of the answer."""
    socket = await open_websocket(server.ws)
    taken: dict[int, list[float]] = {count: [] for count in AHEAD}
    async with closing([socket]):
        for number in range(-1, rounds):
            for count in AHEAD:
                await socket.ask(RESET)
                began, cpu, steps = time.perf_counter(), server.cpu_s(), 0
                while time.perf_counter() < began + 0.3:
                    await socket.ask_often(frame(ASYNC.step), ASYNC.mark, 160, count)
                    steps += 160
                if number >= 0:
                    taken[count].append((server.cpu_s() - cpu) / steps * 1e6)
    return {str(count): middle(of) for count, of in taken.items()}
