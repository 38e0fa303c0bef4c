"""Clients of one server, a step at a time: mcpenv's, async and blocking, and bare WebSockets. Argument: the URL."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack

import uvloop
from rounds import play
from websockets.asyncio.client import ClientConnection, connect
from websockets.sync.client import connect as connect_blocking

from mcpenv_client import EnvClient, Observation, StepResult

STEP = {"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}}
RESET = '{"type":"reset","data":{}}'


def main() -> None:
    url = sys.argv[1]
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        blocking = stack.enter_context(EnvClient(url).sync())
        env = EnvClient(url)
        runner.run(env.connect())
        runner.run(env.reset())
        blocking.reset()
        address = url.replace("http", "ws") + "/ws"
        bare = runner.run(_open(address))
        bare_blocking = stack.enter_context(connect_blocking(address, compression=None))
        bare_blocking.send(RESET)
        bare_blocking.recv()
        loop = runner.get_loop()

        async def step() -> StepResult[Observation]:
            return await env.call_tool("add", {"by": 1})

        async def exchange() -> object:
            await bare.send(json.dumps(STEP))
            return json.loads(await bare.recv())

        def exchange_blocking() -> object:
            bare_blocking.send(json.dumps(STEP))
            return json.loads(bare_blocking.recv())

        assert runner.run(step()).reward == 1.0

        def step_blocking() -> object:
            return blocking.call_tool("add", {"by": 1})

        play(
            {
                "EnvClient": lambda: loop.run_until_complete(step()),
                "EnvClient.sync": step_blocking,
                "EnvClient.sync.thread": step_blocking,
                "bare": lambda: loop.run_until_complete(exchange()),
                "bare.sync": exchange_blocking,
                "bare.sync.thread": exchange_blocking,
            },
            in_thread=("EnvClient.sync.thread", "bare.sync.thread"),
        )
        runner.run(bare.close())
        runner.run(env.close())


async def _open(url: str) -> ClientConnection:
    socket = await connect(url, compression=None)
    await socket.send(RESET)
    await socket.recv()
    return socket


if __name__ == "__main__":
    main()
