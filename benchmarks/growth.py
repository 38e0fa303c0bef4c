"""The cost of a step with more sessions: on the clock, in processor time, in instructions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from . import load
from .busy_socket import BusyWebSocket
from .effort import Effort
from .instructions import Start, counted
from .load import Round, WebSocketConnection, drive, frame, no_collection
from .pairs import middle
from .rows import CALLS, CPU, OURS, Rounds, Row, add_ratios, compare
from .serving import SIDES, Server, floor, mcpenv, together
from .sessions import SLOWER, STARTS, address, opened, ours
from .steps import ASYNC, FLOOR, OPENENV, RESET, stepping

LONGER = "p50, ratio"
"""What a step takes on the clock, times that with the fewest sessions."""

INSTRUCTIONS, MORE = "instructions", "instructions, ratio"
"""What the server's processor does for a step, the kernel's part left out; times that with the fewest sessions, with
one tool, early in an episode."""

MANY, GROWING = "/ws step, sessions held at once", "/ws step, more sessions"
MANY_IN_TURN, GROWING_IN_TURN = "/ws step, one session after the other", "/ws step, more sessions, one after the other"
COUNTED = "/ws step, one session after the other, counted"
COUNTED_TOOLS, COUNTED_STEPS = "/ws step, more tools, counted", "/ws step in a long episode, counted"

UNPINGED = "3600"
"""Seconds between pings where a server is counted: it runs some fifty times slower, and time does not."""

MOST_COUNTED = 100_000
"""Steps of an episode at most, where a server is counted."""

IN_TURN = 3
"""So many times the rounds where one session steps after the other: what a single step takes varies more."""

OPENENV_SESSIONS = 1_000
"""OpenEnv, which has a thread for each session, is measured with no more."""

A_SECOND = 4_000
"""Sessions for which a round is made a second longer, so that each has a few steps."""

Figures = dict[int, dict[str, float]]
"""By the number of sessions."""

Compared = Mapping[str, Callable[[Round], float]]
"""Figures of a round that are compared with those of the fewest sessions', by the name of their ratio."""


def run(effort: Effort) -> list[Row]:
    """Measure all sessions at once; one after the other, with the same load; the same in instructions."""
    return [*_rows(effort), *_counted(effort)]


def _rows(effort: Effort) -> list[Row]:
    """Measure each number of sessions of a side, on a server of its own, in alternation.

    Sides are measured one after the other, because a process has not sockets for two of the largest.
    """
    loads = {MANY: GROWING, MANY_IN_TURN: GROWING_IN_TURN}
    rows = {(path, count): Row(path, f"{count:,} sessions") for path in loads for count in effort.sessions}
    growing = {
        (path, count): Row(loads[path], row.load) for (path, count), row in rows.items() if count != effort.sessions[0]
    }
    for name, start in STARTS.items():
        counts = [count for count in effort.sessions if name != OPENENV or count <= OPENENV_SESSIONS]
        for path, measure in ((MANY, _at_once), (MANY_IN_TURN, _in_turn)):
            with ExitStack() as stack:
                servers = together(stack, {str(count): start() for count in counts})
                of = dict(zip(counts, servers.values(), strict=True))
                seen, compared = drive(measure(name, of, effort))
            for count in counts:
                rows[path, count].sides[name] = seen[count]
            for count in counts[1:]:
                growing[path, count].sides[name] = compared[count]
    for row in rows.values():
        add_ratios(row, CALLS, CPU)
    return [*rows.values(), *growing.values()]


async def _at_once(name: str, servers: Mapping[int, Server], effort: Effort) -> tuple[Figures, Figures]:
    """Measure sessions that all step as often as they can."""
    held: dict[int, list[WebSocketConnection]] = {
        count: await opened(address(server, name), count, reset=name != FLOOR) for count, server in servers.items()
    }
    async with load.closing([socket for sockets in held.values() for socket in sockets]):
        mark = _mark(name)
        sides = {
            count: Rounds(stepping(server, held[count], ASYNC, mark), count / A_SECOND)
            for count, server in servers.items()
        }
        return await _growing(MANY, name, sides, effort, {SLOWER: lambda each: each.cpu_us})


async def _in_turn(name: str, servers: Mapping[int, Server], effort: Effort) -> tuple[Figures, Figures]:
    """Measure sessions of which one at a time steps."""
    with ExitStack() as stack:
        held: dict[int, list[BusyWebSocket]] = {}
        for count, server in servers.items():
            url = address(server, name)
            held[count] = [stack.enter_context(closing(BusyWebSocket(url))) for _ in range(count)]
            if name != FLOOR:
                for socket in held[count]:
                    socket.ask(RESET, b'"observation"')
        sides = {count: Rounds(_InTurn(server, held[count], _mark(name))) for count, server in servers.items()}
        return await _growing(
            MANY_IN_TURN,
            name,
            sides,
            replace(effort, rounds=IN_TURN * effort.rounds),
            {LONGER: lambda each: each.percentile_ms(50), SLOWER: lambda each: each.cpu_us},
        )


def _mark(name: str) -> bytes:
    return b"" if name == FLOOR else ASYNC.mark


class _InTurn:
    """The client that steps one session after the other, and after the last the first again."""

    def __init__(self, server: Server, sockets: Sequence[BusyWebSocket], mark: bytes) -> None:
        self._server = server
        self._sockets = sockets
        self._turns = itertools.cycle(sockets)
        self._mark = mark

    async def play(self, seconds: float) -> Round:
        """Play one round, in which nothing else runs in this event loop."""
        latencies: list[float] = []
        step, mark, turns = frame(ASYNC.step), self._mark, self._turns
        with no_collection():
            cpu_began = self._server.cpu_s()
            began = now = time.perf_counter()
            while now < began + seconds:
                next(turns).ask(step, mark)
                before, now = now, time.perf_counter()
                latencies.append(now - before)
            cpu_s = self._server.cpu_s() - cpu_began
        for socket in self._sockets:
            socket.answer_pings()
        return Round(len(latencies), now - began, cpu_s, latencies)

    def resident_kib(self) -> int:
        """Return the server's memory in KiB."""
        return self._server.resident_kib()


async def _growing(
    path: str, name: str, sides: Mapping[int, Rounds], effort: Effort, compared: Compared
) -> tuple[Figures, Figures]:
    """Return the figures, and their ratios to those of the fewest sessions, round by round."""
    row = await compare(path, name, {str(count): side for count, side in sides.items()}, effort)
    fewest = next(iter(sides.values())).played[1:]  # without the round that is thrown away
    ratios = {
        count: {
            ratio: middle([figure(more) / figure(few) for more, few in zip(side.played[1:], fewest, strict=True)])
            for ratio, figure in compared.items()
        }
        for count, side in sides.items()
    }
    return {count: row.sides[str(count)] for count in sides}, ratios


def _counted(effort: Effort) -> list[Row]:
    """Count instructions, which depend neither on the machine's load nor on the processor's caches."""
    sides: dict[str, Start] = {
        OURS: partial(ours, "--ping-interval-s", UNPINGED),
        FLOOR: partial(floor, "websockets-sansio", UNPINGED),
    }
    sessions = {
        name: {count: counted(start, name, count) for count in effort.sessions} for name, start in sides.items()
    }
    tools = {OURS: {count: counted(with_tools(count), OURS, 1) for count in (1, effort.tools)}}
    late = min(effort.steps, MOST_COUNTED)
    steps = {OURS: {before: counted(sides[OURS], OURS, 1, before) for before in (late // 100, late)}}
    return [
        *_beside_the_least(COUNTED, "{:,} sessions", sessions),
        *_beside_the_least(COUNTED_TOOLS, "{:,} tools", tools),
        *_beside_the_least(COUNTED_STEPS, "after {:,} steps", steps),
    ]


def with_tools(count: int) -> Start:
    """Start mcpenv's server of an environment with so many tools."""
    return partial(
        mcpenv, SIDES / "mcpenv_mcp.py", "--set", f"tools={count}", "--set", "sync=false", "--ping-interval-s", UNPINGED
    )


def _beside_the_least(path: str, load: str, seen: Mapping[str, Mapping[int, float]]) -> list[Row]:
    """Return a row for each number of sessions, from the figures by side and number."""
    rows = []
    for count in seen[OURS]:
        row = Row(path, load.format(count))
        for name, of in seen.items():
            row.sides[name] = {INSTRUCTIONS: of[count], MORE: of[count] / of[min(of)]}
        add_ratios(row, INSTRUCTIONS)
        rows.append(row)
    return rows
