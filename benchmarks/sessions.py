"""The memory and the step time of idle sessions, of long ones, and of many in sequence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from .effort import Effort
from .load import WebSocketConnection, closing, drive, frame, open_websocket
from .rows import CPU, MEMORY, OURS, Rounds, Row, compare, figures_of
from .serving import SIDES, Server, floor, mcpenv, together
from .steps import ASYNC, FLOOR, OPENENV, RESET, openenv, stepping

EACH, THREADS, AFTER_FIRST, GROWTH = "KiB a session", "threads a session", "MiB after the first tenth", "MiB, ratio"
SLOWER = "CPU µs, ratio"
"""Processor time of a step, times that at the beginning of an episode, or with the fewest sessions."""

LONG = "/ws step in a long episode"

AT_ONCE = 32
"""How many sockets are opened at once, and how many clients open and close episodes."""

AHEAD = 16
"""Steps under way where one session takes very many that are not measured."""

ROOM = 20_000

Start = Callable[[], AbstractContextManager[Server]]


def ours() -> AbstractContextManager[Server]:
    """Start mcpenv's server with room for all sessions."""
    return mcpenv(SIDES / "mcpenv_tools.py", "--max-sessions", str(ROOM))


def run(effort: Effort) -> list[Row]:
    """Measure idle sessions, a long episode, and churn."""
    return [_idle(effort), *_long(effort), _churn(effort)]


def address(server: Server, side: str) -> str:
    """Return the address of that side's sockets."""
    return f"{server.ws}?bytes=300" if side == FLOOR else server.ws


async def opened(url: str, count: int, reset: bool = True) -> list[WebSocketConnection]:
    """Return so many sockets, each in an episode."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> WebSocketConnection:
        async with places:
            socket = await open_websocket(url)
            if reset:
                await socket.ask(RESET, b'"observation"')
            return socket

    return await asyncio.gather(*(one() for _ in range(count)))


STARTS: dict[str, Start] = {OURS: ours, FLOOR: floor, OPENENV: openenv}
"""How each side is started."""


# -- idle


def _idle(effort: Effort) -> Row:
    """Measure the memory of sessions that were reset, stepped once, and do nothing. Servers are fresh."""
    count = min(effort.sessions[-1], 1_000)
    row = Row("an idle session: its memory", f"{count:,} sessions")
    with ExitStack() as stack:
        for name, server in together(stack, {name: start() for name, start in STARTS.items()}).items():
            row.sides[name] = drive(_held(server, address(server, name), count, name != FLOOR))
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


# -- a long episode


def _long(effort: Effort) -> list[Row]:
    """Step one session up to the last number, and measure the cost of a step on the way.

    A session whose episode has just begun is measured in alternation.
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
            long = Rounds(replace(stepping(server, [old], ASYNC, ASYNC.mark), before=None))
            begun = stepping(server, [new], ASYNC, ASYNC.mark)
            row = await compare(LONG, f"after {mark:,} steps", {OURS: long, NEW: begun}, effort)
            taken += sum(played.calls for played in long.played)
            row.sides[OURS][SLOWER] = row.ratios.pop(NEW)[CPU].middle
            del row.sides[NEW]
            rows.append(row)
    return rows


NEW = "an episode that has just begun"


# -- churn


def _churn(effort: Effort) -> Row:
    """Open, step once and close episodes, and measure the memory that stays."""
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
