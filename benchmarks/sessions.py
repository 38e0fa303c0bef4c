"""Many sessions, long ones, and many one after the other: what they take of memory, and whether steps become slower."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from .effort import Effort
from .load import Round, WebSocketConnection, Work, closing, drive, frame, open_websocket
from .pairs import middle
from .rows import CALLS, CPU, MEMORY, OURS, Row, Side, add_ratios, compare, figures_of
from .serving import SIDES, Server, floor, mcpenv, together
from .steps import ASYNC, FLOOR, OPENENV, RESET, openenv, stepping

EACH, THREADS, AFTER_FIRST, GROWTH = "KiB a session", "threads a session", "MiB after the first tenth", "MiB, ratio"
SLOWER = "CPU µs, ratio"
"""Processor time of a step, times that with the fewest sessions, or at the beginning of an episode."""

LONGER = "p50, ratio"
"""What a step takes on the clock, times that with the fewest sessions."""

MANY, GROWING, LONG = "/ws step, sessions held at once", "/ws step, more sessions", "/ws step in a long episode"
MANY_IN_TURN, GROWING_IN_TURN = "/ws step, one session after the other", "/ws step, more sessions, one after the other"

IN_TURN = 3
"""So many times the rounds where one session steps after the other: what a single step takes varies more."""

AT_ONCE = 32
"""How many sockets are opened at once, and how many clients open and close episodes."""

OPENENV_SESSIONS = 1_000
"""OpenEnv, which has a thread for each session, is measured with no more."""

AHEAD = 16
"""Steps under way where one session takes very many that are not measured."""

ROOM = 20_000

Start = Callable[[], AbstractContextManager[Server]]


def ours() -> AbstractContextManager[Server]:
    """Mcpenv's server, with room for all."""
    return mcpenv(SIDES / "mcpenv_tools.py", "--max-sessions", str(ROOM))


def run(effort: Effort) -> list[Row]:
    """Idle sessions, sessions that step, a long episode, churn."""
    return [_idle(effort), *_many(effort), *_long(effort), _churn(effort)]


async def opened(url: str, count: int, reset: bool = True) -> list[WebSocketConnection]:
    """So many sockets, each in an episode."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> WebSocketConnection:
        async with places:
            socket = await open_websocket(url)
            if reset:
                await socket.ask(RESET, b'"observation"')
            return socket

    return await asyncio.gather(*(one() for _ in range(count)))


# -- idle


def _idle(effort: Effort) -> Row:
    """Memory of sessions that were reset, stepped once, and do nothing. Servers are fresh."""
    count = min(effort.sessions[-1], 1_000)
    row = Row("an idle session: its memory", f"{count:,} sessions")
    starts: dict[str, tuple[Start, str]] = {
        OURS: (ours, "/ws"),
        FLOOR: (floor, "/ws?bytes=300"),
        OPENENV: (openenv, "/ws"),
    }
    with ExitStack() as stack:
        servers = together(stack, {name: start() for name, (start, _) in starts.items()})
        for name, server in servers.items():
            url = server.base.replace("http", "ws") + starts[name][1]
            row.sides[name] = drive(_held(server, url, count, name != FLOOR))
    above = row.sides[OURS][EACH] - row.sides[FLOOR][EACH]
    row.sides[f"{OURS}, above the floor's socket"] = {EACH: above}
    return row


async def _held(server: Server, url: str, count: int, resets: bool) -> dict[str, float]:
    async def hold(how_many: int) -> list[WebSocketConnection]:
        sockets = await opened(url, how_many, resets)
        await asyncio.gather(*(socket.ask(frame(ASYNC.step)) for socket in sockets))
        return sockets

    async with closing(await hold(AT_ONCE)):  # what is made at the first sessions is no session's
        before, threads = server.resident_kib(), server.threads()
        async with closing(await hold(count)):
            return {
                EACH: (server.resident_kib() - before) / count,
                THREADS: (server.threads() - threads) / count,
                MEMORY: server.resident_kib() / 1024,
            }


# -- many at once


def _many(effort: Effort) -> list[Row]:
    """All sessions step at once, and then one after the other: more sessions, and the same load.

    Of a side, each number of them has a server of its own, and they take turns.

    Each side by itself, because a process has not sockets for two of the largest.
    """
    rows = {(path, count): Row(path, f"{count:,} sessions") for path in _LOADS for count in effort.sessions}
    growing = {
        (path, count): Row(_LOADS[path], row.load) for (path, count), row in rows.items() if count != effort.sessions[0]
    }
    sides: dict[str, Start] = {OURS: ours, FLOOR: floor, OPENENV: openenv}
    for name, start in sides.items():
        counts = [count for count in effort.sessions if name != OPENENV or count <= OPENENV_SESSIONS]
        with ExitStack() as stack:
            servers = together(stack, {str(count): start() for count in counts})
            for path, (seen, slower) in drive(_stepping_all(list(servers.values()), name, counts, effort)).items():
                for count in counts:
                    rows[path, count].sides[name] = seen[count]
                for count in counts[1:]:
                    growing[path, count].sides[name] = slower[count]
    for row in rows.values():
        add_ratios(row, CALLS, CPU)
    return [*rows.values(), *growing.values()]


_LOADS = {MANY: GROWING, MANY_IN_TURN: GROWING_IN_TURN}
"""By the path of the rows with figures, that of the rows in which those are compared with the fewest sessions'."""

Figures = dict[int, dict[str, float]]
"""By the number of sessions."""


async def _stepping_all(
    servers: Sequence[Server], name: str, counts: Sequence[int], effort: Effort
) -> dict[str, tuple[Figures, Figures]]:
    """By path: the figures, and how they compare with those of the fewest sessions."""
    held = [
        await opened(f"{server.ws}?bytes=300" if name == FLOOR else server.ws, count, reset=name != FLOOR)
        for server, count in zip(servers, counts, strict=True)
    ]
    async with closing([socket for sockets in held for socket in sockets]):
        mark = b"" if name == FLOOR else ASYNC.mark
        of = list(zip(counts, servers, held, strict=True))
        at_once = {
            count: Rounds(stepping(server, sockets, ASYNC, mark), count / A_SECOND) for count, server, sockets in of
        }
        in_turn = {count: Rounds(Side(server, [_in_turn(sockets, mark)]), 0) for count, server, sockets in of}
        return {
            MANY: await _growing(MANY, name, at_once, effort, {SLOWER: lambda each: each.cpu_us}),
            MANY_IN_TURN: await _growing(
                MANY_IN_TURN,
                name,
                in_turn,
                replace(effort, rounds=IN_TURN * effort.rounds),
                {LONGER: lambda each: each.percentile_ms(50), SLOWER: lambda each: each.cpu_us},
            ),
        }


async def _growing(
    path: str,
    name: str,
    players: Mapping[int, Rounds],
    effort: Effort,
    compared: Mapping[str, Callable[[Round], float]],
) -> tuple[Figures, Figures]:
    row = await compare(path, name, {str(count): player for count, player in players.items()}, effort)
    fewest = next(iter(players.values())).played[1:]  # without the round that is thrown away
    ratios = {
        count: {
            ratio: middle([figure(more) / figure(few) for more, few in zip(player.played[1:], fewest, strict=True)])
            for ratio, figure in compared.items()
        }
        for count, player in players.items()
    }
    return {count: row.sides[str(count)] for count in players}, ratios


def _in_turn(sockets: Sequence[WebSocketConnection], mark: bytes) -> Work:
    """A client that steps one session after the other, and after the last the first again."""
    step, turns = frame(ASYNC.step), itertools.cycle(sockets)

    async def work(until: float, latencies: list[float]) -> None:
        while (now := time.perf_counter()) < until:
            await next(turns).repeat(step, mark, now, latencies)  # once

    return work


A_SECOND = 4_000
"""Sessions for which a round is made a second longer, so that each has a few steps."""


class Rounds:
    """A side whose rounds are as long as it needs, and kept.

    Attributes:
        played: its rounds.
    """

    def __init__(self, side: Side, seconds: float) -> None:
        self._side = side
        self._seconds = seconds
        self.played: list[Round] = []

    async def play(self, seconds: float) -> Round:
        """One round."""
        played = await self._side.play(max(seconds, self._seconds))
        self.played.append(played)
        return played

    def resident_kib(self) -> int:
        """The server's memory."""
        return self._side.resident_kib()


# -- a long episode


def _long(effort: Effort) -> list[Row]:
    """One session takes steps up to the last number; what a step takes is measured on the way.

    In turns with a session beside it whose episode has just begun.
    """
    # The rounds are steps too, and the next mark is beyond them.
    marks = [*(mark for mark in (100_000,) if mark < effort.steps), effort.steps]
    with mcpenv(SIDES / "mcpenv_tools.py") as server:
        return drive(_long_rows(server, marks, effort))


async def _long_rows(server: Server, marks: Sequence[int], effort: Effort) -> list[Row]:
    rows, step = [], frame(ASYNC.step)
    sockets = old, new = await opened(server.ws, 2)
    async with closing(sockets):
        taken = 0
        for mark in marks:
            await old.ask_often(step, ASYNC.mark, max(mark - taken, 0), AHEAD)
            taken = max(mark, taken)
            long = Rounds(replace(stepping(server, [old], ASYNC, ASYNC.mark), before=None), 0)
            begun = Rounds(stepping(server, [new], ASYNC, ASYNC.mark), 0)
            row = await compare(LONG, f"after {mark:,} steps", {OURS: long, NEW: begun}, effort)
            taken += sum(played.calls for played in long.played)
            row.sides[OURS][SLOWER] = row.ratios.pop(NEW)[CPU].middle
            del row.sides[NEW]
            rows.append(row)
    return rows


NEW = "an episode that has just begun"


# -- churn


def _churn(effort: Effort) -> Row:
    """Episodes opened, stepped once and closed; whether memory stays."""
    with ours() as server:
        first = drive(_open_and_close(server, effort.episodes // 10))
        then = drive(_open_and_close(server, effort.episodes - effort.episodes // 10))
    row = Row("connect, reset, step, close", f"{effort.episodes:,} episodes")
    row.sides[OURS] = {**then, AFTER_FIRST: first[MEMORY], GROWTH: then[MEMORY] / first[MEMORY]}
    return row


async def _open_and_close(server: Server, episodes: int) -> dict[str, float]:
    left, latencies = episodes, []

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            socket = await open_websocket(server.ws)
            async with closing([socket]):
                await socket.ask(RESET, b'"observation"')
                await socket.ask(frame(ASYNC.step), ASYNC.mark)
            latencies.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), server.cpu_s()
    await asyncio.gather(*(client() for _ in range(min(AT_ONCE, episodes))))
    measured = figures_of(episodes, time.perf_counter() - began, server.cpu_s() - cpu, latencies)
    return {**measured, MEMORY: server.resident_kib() / 1024}
