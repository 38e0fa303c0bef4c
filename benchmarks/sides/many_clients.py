"""Many clients of one server at once: mcpenv's and bare WebSockets, in one event loop and in threads.

Arguments: the URL, how many in the loop, how many in threads. Rounds are told and said as in `rounds`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.sync.client import connect as connect_blocking

from mcpenv_client import EnvClient

RESET = '{"type":"reset","data":{}}'
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "add": ("add", {"by": 1}),
    "compute": ("compute", {"microseconds": 200}),
}
"""What a step calls, by the second half of a work's name."""
AT_ONCE = 100
"""Connections that are opened at once."""


def main() -> None:
    url, in_loop, in_threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ws = url.replace("http", "ws") + "/ws"
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ThreadPoolExecutor(in_threads) as threads,
        ExitStack() as stack,
    ):
        envs = [EnvClient(url) for _ in range(in_loop)]
        sockets: list[ClientConnection] = []

        async def open_all() -> None:
            for begin in range(0, in_loop, AT_ONCE):
                await asyncio.gather(*(env.reset() for env in envs[begin : begin + AT_ONCE]))
                opened = (connect(ws, compression=None) for _ in envs[begin : begin + AT_ONCE])
                sockets.extend(await asyncio.gather(*opened))
            for socket in sockets:
                await socket.send(RESET)
                await socket.recv()

        runner.run(open_all())
        blocking = [stack.enter_context(EnvClient(url).sync()) for _ in range(in_threads)]
        bare = [stack.enter_context(connect_blocking(ws, compression=None)) for _ in range(in_threads)]
        for env, socket in zip(blocking, bare, strict=True):
            env.reset()
            socket.send(RESET)
            socket.recv()

        def exchange(socket: Any, tool: str, arguments: dict[str, Any]) -> object:
            socket.send(_step(tool, arguments))
            return json.loads(socket.recv())

        async def exchange_async(socket: ClientConnection, tool: str, arguments: dict[str, Any]) -> object:
            await socket.send(_step(tool, arguments))
            return json.loads(await socket.recv())

        def of_loop(steps: Sequence[Callable[[], Awaitable[object]]]) -> Callable[[float], list[float]]:
            return lambda until: runner.run(_until(steps, until))

        def of_threads(steps: Sequence[Callable[[], object]]) -> Callable[[float], list[float]]:
            def played(until: float) -> list[float]:
                return [took for each in threads.map(lambda step: _repeat(step, until), steps) for took in each]

            return played

        works: dict[str, Callable[[float], list[float]]] = {}
        for name, call in CALLS.items():
            works[f"EnvClient:{name}"] = of_loop([partial(env.call_tool, *call) for env in envs])
            works[f"bare:{name}"] = of_loop([partial(exchange_async, socket, *call) for socket in sockets])
            works[f"EnvClient.sync:{name}"] = of_threads([partial(env.call_tool, *call) for env in blocking])
            works[f"bare.sync:{name}"] = of_threads([partial(exchange, socket, *call) for socket in bare])
        print("ready", flush=True)
        for line in sys.stdin:
            name, seconds = line.split()
            gc.collect()
            began, cpu = time.perf_counter(), time.process_time()
            latencies = works[name](began + float(seconds))
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
            print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "latencies": latencies}), flush=True)
        runner.run(_close(envs, sockets))


def _step(tool: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}})


async def _until(steps: Sequence[Callable[[], Awaitable[object]]], until: float) -> list[float]:
    latencies: list[float] = []

    async def repeat(step: Callable[[], Awaitable[object]]) -> None:
        before = time.perf_counter()
        while before < until:
            await step()
            now = time.perf_counter()
            latencies.append(now - before)
            before = now

    await asyncio.gather(*map(repeat, steps))
    return latencies


def _repeat(step: Callable[[], object], until: float) -> list[float]:
    latencies: list[float] = []
    before = time.perf_counter()
    while before < until:
        step()
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    return latencies


async def _close(envs: Sequence[EnvClient], sockets: Sequence[ClientConnection]) -> None:
    await asyncio.gather(*(env.close() for env in envs), *(socket.close() for socket in sockets))


if __name__ == "__main__":
    main()
