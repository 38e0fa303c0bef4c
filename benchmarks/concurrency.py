"""The share of concurrent sessions that succeed: each connects, resets, and takes one step that waits a second.

OpenEnv publishes the same measurement. A session succeeds within `PATIENCE_S`. The times of connecting, resetting and
stepping are measured too.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from .effort import Effort
from .load import WebSocketConnection, WrongAnswer, drive, frame, open_websocket, percentile
from .pairs import middle
from .rows import OURS, Row
from .serving import Server, mcpenv, together
from .steps import OPENENV, RESET, openenv

ENVIRONMENT = Path(__file__).resolve().parents[1] / "envs" / "benchmark_mcp"

WAIT_S = 1.0
PATIENCE_S = 60.0
"""Maximum seconds of a session."""

SHARE, CONNECT, RESETTING, STEP, WHOLE = "succeeded %", "connect p99 ms", "reset p99 ms", "step p99 ms", "all s"

STEPPING = json.dumps(
    {"type": "step", "data": {"type": "call_tool", "tool_name": "wait", "arguments": {"seconds": WAIT_S}}}
).encode()


@dataclass(slots=True)
class Seen:
    """The times of the successful sessions of one round, in seconds."""

    connect: list[float] = field(default_factory=list)
    reset: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


def run(effort: Effort) -> list[Row]:
    """Measure each number of sessions, both sides in alternation; above 1,000 once."""
    room = str(2 * effort.waiting[-1])
    with ExitStack() as stack:
        servers = together(stack, {OURS: mcpenv(ENVIRONMENT, "--max-sessions", room), OPENENV: openenv()})
        return [_row(servers, count, rounds=1 if count > 1_000 else min(effort.rounds, 3)) for count in effort.waiting]


def _row(servers: dict[str, Server], count: int, rounds: int) -> Row:
    row = Row(f"connect, reset, a step that waits {WAIT_S:.0f} s", f"{count:,} sessions")
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            seen[name].append(drive(_at_once(server, count)))
    for name, figures in seen.items():
        row.sides[name] = {key: middle([each[key] for each in figures if key in each]) for key in figures[0]}
    return row


async def _at_once(server: Server, count: int) -> dict[str, float]:
    seen = Seen()
    began, cpu = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*(_session(server, seen) for _ in range(count)))
    figures = {SHARE: 100 * len(seen.step) / count}
    if seen.step:
        for name, of in ((CONNECT, seen.connect), (RESETTING, seen.reset), (STEP, seen.step)):
            figures[name] = percentile(of, 99) * 1e3
    figures[WHOLE] = time.perf_counter() - began
    figures["CPU ms a session"] = (server.cpu_s() - cpu) / count * 1e3
    return figures


async def _session(server: Server, seen: Seen) -> None:
    """Open a session and step it. Count it if every answer is right and in time."""
    moments = [time.perf_counter()]
    socket: WebSocketConnection | None = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            socket = await open_websocket(server.ws)
            moments.append(time.perf_counter())
            await socket.ask(RESET, b'"observation"')
            moments.append(time.perf_counter())
            await socket.ask(frame(STEPPING), b'"reward":1.0')
            moments.append(time.perf_counter())
    except (TimeoutError, OSError, WrongAnswer):
        return  # it failed, and is missing in the share
    finally:
        if socket is not None:
            socket.close()
    for of, begin, end in zip((seen.connect, seen.reset, seen.step), moments, moments[1:], strict=False):
        of.append(end - begin)
