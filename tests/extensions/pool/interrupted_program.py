"""Plays that get Ctrl-C, from the terminal's process group, at many moments; run with its own process group.

Arguments: a play of `PLAYS`, a pool, a policy of `pool_worlds`, the URL of a server of `Dice`, and the moments, in
seconds. Each moment interrupts a new play. Prints for each the seconds until the play had ended. The last play is
interrupted too, and its `KeyboardInterrupt` ends the program.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pool_worlds
from pool_worlds import Dice, calls

from mcpenv_client.pool import EnvPool, MixedPool

URL = ""

Pool = Callable[[], EnvPool]


def local() -> EnvPool:
    return EnvPool(Dice, 4)


def processes() -> EnvPool:
    return EnvPool(Dice, 4, backend="process", workers=2)


def servers() -> EnvPool:
    return EnvPool([URL], 4, backend="remote")


def rollout(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with make() as pool:
            await pool.rollout(policy, ["t1"] * 1000)

    asyncio.run(play())


def stream(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with make() as pool:
            async for _ in pool.play(policy, itertools.repeat("t1")):
                pass

    asyncio.run(play())


def groups(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with make() as pool:
            async for _ in pool.groups(policy, itertools.repeat("t1"), group=2, group_timeout_s=60.0):
                pass

    asyncio.run(play())


def forks(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with make() as pool:
            await pool.rollout(policy, ["t1"] * 1000, group=3, forks=True)

    asyncio.run(play())


def samples(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with make() as pool:
            async for _ in pool.samples(policy, itertools.repeat("t1"), group=2):
                pass

    asyncio.run(play())


def mixed(make: Pool, policy: Any) -> None:
    async def play() -> None:
        async with MixedPool({"a": make(), "b": make()}) as pool:
            rows = ({"world": world, "task": "t1"} for world in itertools.cycle("ab"))
            async for _ in pool.play(policy, rows):
                pass

    asyncio.run(play())


def blocking(make: Pool, policy: Any) -> None:
    with make().sync() as pool:
        pool.rollout(policy, ["t1"] * 1000)


def steps(make: Pool, policy: Any) -> None:
    with make().sync() as pool:
        while True:
            pool.reset_all(["t1"] * 4)
            for _ in range(5):
                pool.step_all([calls("hang", seconds=0.002)] * 4)


def gymnasium(make: Pool, policy: Any) -> None:
    from mcpenv_client.trainers.gymnasium import McpenvEnv

    target: Any = Dice if make is local else URL
    with closing(McpenvEnv(target, actions=ACTIONS)) as env:
        while True:
            env.reset(seed=1)
            for number in range(5):
                env.step(number % 2)


def vector(make: Pool, policy: Any) -> None:
    from mcpenv_client.trainers.gymnasium_vector import McpenvVectorEnv

    target: Any = Dice if make is local else [URL]
    with closing(McpenvVectorEnv(target, 4, actions=ACTIONS)) as envs:
        envs.reset(seed=1)
        for number in itertools.count():
            envs.step([number % 2] * 4)


ACTIONS = [("roll", {}), ("hang", {"seconds": 0.002})]

POOLS = {"local": local, "process": processes, "remote": servers}
PLAYS: dict[str, Callable[[Pool, Any], None]] = {
    each.__name__: each for each in (rollout, stream, groups, forks, samples, mixed, blocking, steps, gymnasium, vector)
}


def pressed_again(dropped: Any) -> None:
    """Interrupt again if Python dropped the interruption because it was in a finalizer, as a user would."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()  # here it would be dropped, too
    else:
        sys.__unraisablehook__(dropped)


def main() -> None:
    global URL
    play, pool, policy, URL = sys.argv[1:5]
    if play in ("gymnasium", "vector"):
        import mcpenv_client.trainers.gymnasium_vector  # noqa: F401 - an interrupted import cannot be repeated
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    sys.unraisablehook = pressed_again

    def run() -> None:
        PLAYS[play](POOLS[pool], getattr(pool_worlds, policy))

    *moments, last = map(float, sys.argv[5:])
    at = 0.0

    def interrupt() -> None:
        nonlocal at
        at = time.monotonic()
        os.killpg(0, signal.SIGINT)

    for moment in moments:
        timer = threading.Timer(moment, interrupt)
        try:
            timer.start()
            run()
            timer.join()
            raise AssertionError("the play ended by itself")
        except KeyboardInterrupt:
            print(time.monotonic() - at, flush=True)
    threading.Timer(last, os.killpg, (0, signal.SIGINT)).start()
    run()


if __name__ == "__main__":
    main()
