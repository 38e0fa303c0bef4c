"""Episodes that end their worker process while others play in it."""

from __future__ import annotations

import asyncio
from typing import Any

from pool_worlds import Dice, five_rolls_async

from mcpenv_client import StatusCode
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Played

TASKS = [f"t{number}" for number in range(12)]


async def poison(episode: Any) -> int:
    """Roll; in episode 5 always end the process."""
    rolled = await five_rolls_async(episode)
    if episode.assignment.number == 5:
        await episode.call_tool("die")
    return rolled


def digests(played: list[Played]) -> list[str]:
    return [digest_of(each.trajectory) for each in played if each.trajectory is not None]


def test_an_episode_that_always_ends_its_worker_is_lost_alone() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 8, backend="process", workers=2) as pool:
            expected = digests(await pool.rollout(five_rolls_async, TASKS, seed=3))
            played = await pool.rollout(poison, TASKS, seed=3, retries=0)
            lost = played.pop(5)
            assert (lost.status.code, lost.trajectory, lost.reward) == (StatusCode.TRANSPORT_LOST, None, None)
            assert all(each.status.usable for each in played)
            assert digests(played) == expected[:5] + expected[6:]

    asyncio.run(asyncio.wait_for(play(), 120))
