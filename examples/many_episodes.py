"""Play sixty-four concurrent episodes on one server, each in a session of its own.

Run it::

    python examples/many_episodes.py                         # starts a server of its own
    python examples/many_episodes.py http://127.0.0.1:8000   # mcpenv run examples/write_an_environment.py
"""

import asyncio
import sys
import time
from contextlib import ExitStack

from serving import GUESS_NUMBER, served

from mcpenv_client import EnvClient

EPISODES = 64


async def episode(url: str, seed: int) -> tuple[float, int]:
    """Play one game by bisection, and return its return and its number of steps."""
    async with EnvClient(url) as env:
        await env.reset(seed=seed)
        low, high = 1, 100
        while True:
            number = (low + high) // 2
            step = await env.call_tool("guess", {"number": number})
            if step.done:
                return step.info["return"], (await env.state()).step_count
            low, high = (number + 1, high) if step.text == "higher" else (low, number - 1)


async def main(url: str) -> None:
    started = time.perf_counter()
    played = await asyncio.gather(*(episode(url, seed) for seed in range(EPISODES)))
    took_s = time.perf_counter() - started
    returns, steps = zip(*played, strict=True)
    print(f"{EPISODES} episodes, {sum(steps)} steps in {took_s:.2f} s; returns {min(returns)} to {max(returns)}")
    assert returns == (1.0,) * EPISODES
    assert max(steps) <= 7  # halving 1 to 100


with ExitStack() as stack:
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(served(GUESS_NUMBER))))
