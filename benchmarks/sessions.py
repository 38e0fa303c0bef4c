"""Many sessions, long ones, and many one after the other: what they take of memory, and whether steps become slower."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from .effort import Effort
from .load import WebSocketConnection, closing, drive, frame, open_websocket
from .rows import CALLS, CPU, MEMORY, OURS, Row, add_ratios, compare, figures_of
from .serving import SIDES, Server, floor, mcpenv, together
from .steps import ASYNC, FLOOR, OPENENV, RESET, openenv, stepping

EACH, THREADS, AFTER_FIRST, GROWTH = "KiB a session", "threads a session", "MiB after the first tenth", "MiB, ratio"

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
    """All sessions step at once; each side by itself, because a process has not sockets for two of the largest."""
    rows = []
    for count in effort.sessions:
        starts: dict[str, Start] = {OURS: ours, FLOOR: floor}
        if count <= OPENENV_SESSIONS:
            starts[OPENENV] = openenv
        row = Row("/ws step, sessions held at once", f"{count:,} sessions")
        for name, start in starts.items():
            with start() as server:
                row.sides[name] = drive(_stepping_all(server, name, count, effort))
        add_ratios(row, CALLS, CPU)
        rows.append(row)
    return rows


async def _stepping_all(server: Server, name: str, count: int, effort: Effort) -> dict[str, float]:
    url = f"{server.ws}?bytes=300" if name == FLOOR else server.ws
    async with closing(sockets := await opened(url, count, reset=name != FLOOR)):
        side = stepping(server, sockets, ASYNC, b"" if name == FLOOR else ASYNC.mark)
        # Long enough for each session to have a few steps.
        calm = replace(effort, rounds=min(effort.rounds, 3), round_s=max(effort.round_s, count / 2_000))
        return (await compare("", "", {name: side}, calm)).sides[name]


# -- a long episode


def _long(effort: Effort) -> list[Row]:
    """One session takes steps up to the last number; what a step takes is measured on the way."""
    marks = [1]
    while marks[-1] < effort.steps:
        marks.append(min(marks[-1] * 10, effort.steps))
    with mcpenv(SIDES / "mcpenv_tools.py") as server:
        return drive(_long_rows(server, marks, effort))


async def _long_rows(server: Server, marks: Sequence[int], effort: Effort) -> list[Row]:
    rows, step = [], frame(ASYNC.step)
    async with closing([socket := await open_websocket(server.ws)]):
        await socket.ask(RESET)
        taken = 0
        for mark in marks:
            await socket.ask_often(step, ASYNC.mark, max(mark - taken, 0), AHEAD)
            taken = max(mark, taken)
            latencies: list[float] = []
            began, cpu = time.perf_counter(), server.cpu_s()
            await socket.repeat(step, ASYNC.mark, began + effort.round_s, latencies)
            measured = figures_of(len(latencies), time.perf_counter() - began, server.cpu_s() - cpu, latencies)
            taken += len(latencies)
            row = Row("/ws step in a long episode", f"after {mark:,} steps")
            row.sides[OURS] = {**measured, MEMORY: server.resident_kib() / 1024}
            rows.append(row)
    return rows


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
