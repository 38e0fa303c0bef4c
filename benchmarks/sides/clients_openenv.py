"""OpenEnv's client of the same server. Argument: the URL."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop
from openenv.core import GenericEnvClient
from rounds import play

STEP = {"type": "call_tool", "tool_name": "add", "arguments": {"by": 1}}


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        env: Any = GenericEnvClient(base_url=sys.argv[1])
        runner.run(_begin(env))
        loop = runner.get_loop()
        with GenericEnvClient(base_url=sys.argv[1]).sync() as blocking:
            blocking.reset()
            play(
                {
                    "EnvClient": lambda: loop.run_until_complete(_step(env)),
                    "EnvClient.sync": lambda: blocking.step(STEP),
                    "EnvClient.sync.thread": lambda: blocking.step(STEP),
                },
                in_thread=("EnvClient.sync.thread",),
            )
        runner.run(_end(env))


async def _begin(env: Any) -> None:
    await env.connect()
    await env.reset()
    assert (await env.step(STEP)).reward == 1.0


async def _step(env: Any) -> Any:
    return await env.step(STEP)


async def _end(env: Any) -> None:
    await env.close()


if __name__ == "__main__":
    main()
