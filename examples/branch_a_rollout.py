"""Sample best of n from step k: snapshot an episode after its first guess, and fork it for every player.

Run it::

    python examples/branch_a_rollout.py                         # starts a server of its own
    python examples/branch_a_rollout.py http://127.0.0.1:8000   # mcpenv run examples/write_an_environment.py
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack

from serving import GUESS_NUMBER, served

from mcpenv_client import EnvClient

PLAYERS: dict[str, Callable[[int, int], int]] = {
    "halving": lambda low, high: (low + high) // 2,
    "cautious": lambda low, high: low + (high - low) // 4,
    "counting up": lambda low, high: low,
}


def narrowed(low: int, high: int, number: int, answer: str) -> tuple[int, int]:
    """Return the range that is left after a guess."""
    return (number + 1, high) if answer == "higher" else (low, number - 1)


async def play_on(env: EnvClient, low: int, high: int, guess: Callable[[int, int], int]) -> tuple[float, int]:
    """Play to the end, and return the return and the step count of the whole episode."""
    while True:
        number = guess(low, high)
        step = await env.call_tool("guess", {"number": number})
        if step.done:
            earned = step.info["return"]  # None if no guess was ever scored
            return earned or 0.0, (await env.state()).step_count
        low, high = narrowed(low, high, number, step.text)


async def main(url: str) -> None:
    async with AsyncExitStack() as stack:
        trunk = await stack.enter_async_context(EnvClient(url))
        await trunk.reset(seed=3)
        first = await trunk.call_tool("guess", {"number": 50})
        low, high = narrowed(1, 100, 50, first.text)

        held = await trunk.snapshot()
        branches = [await stack.enter_async_context(await trunk.fork(held)) for _ in PLAYERS]
        played = await asyncio.gather(
            *(play_on(env, low, high, guess) for env, guess in zip(branches, PLAYERS.values(), strict=True))
        )
        for name, (score, steps) in zip(PLAYERS, played, strict=True):
            print(f"{name}: return {score}, {steps} steps")
        best, _, winner = max((score, -steps, name) for name, (score, steps) in zip(PLAYERS, played, strict=True))
        print(f"best: {winner}")
        assert best == 1.0 and winner == "halving"

        branch = await branches[0].trajectory()
        assert branch.forked_from is not None and branch.forked_from.step == 1
        assert len(branch.steps) == played[0][1]  # its record starts with the shared guess

        assert (await trunk.state()).step_count == 1  # forks do not affect the original episode
        again = await trunk.restore(held)
        assert again.text == first.text
        assert await play_on(trunk, low, high, PLAYERS["halving"]) == played[0]


with ExitStack() as stack:
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(served(GUESS_NUMBER))))
