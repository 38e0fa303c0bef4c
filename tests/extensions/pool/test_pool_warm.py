"""Environments of pools that are reset ahead of need."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pool_worlds import Beside, Dice, Marked, five_rolls, five_rolls_async

from mcpenv.server.serve import serving
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode, Limits, Played, PoolError

TASKS = [f"t{number}" for number in range(8)]


class Resets:
    """Counts resets, and lets the policies of a rollout wait for the reset of the next episode.

    Attributes:
        done: released by each reset.
        running: the policies that run.
        most: the most of them at once.
    """

    def __init__(self) -> None:
        self.done = threading.Semaphore(0)
        self.running = self.most = 0
        self._places = itertools.count()

    def environment(self) -> Callable[[], Dice]:
        """Return a class of environments that count here."""
        resets = self

        class Counted(Dice):
            def reset(self, seed: int | None = None, episode_id: str | None = None, goal: int = 0) -> None:
                super().reset(seed=seed, episode_id=episode_id, goal=goal)
                resets.done.release()

        return Counted

    def wait(self) -> None:
        """Wait for the reset of the next episode; the first also for its own, and the last for none."""
        place = next(self._places)
        for _ in range(2 if place == 0 else int(place < len(TASKS) - 1)):
            assert self.done.acquire(timeout=30), "the next episode was not reset ahead"

    def blocking(self, episode: BlockingEpisode) -> int:
        """Play after the wait."""
        self.running += 1
        self.most = max(self.most, self.running)
        self.wait()
        total = five_rolls(episode)
        self.running -= 1
        return total

    async def later(self, episode: Episode) -> int:
        """Play after the wait."""
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.to_thread(self.wait)
        total = await five_rolls_async(episode)
        self.running -= 1
        return total


def digests(played: list[Played]) -> list[str]:
    assert len(played) == len(TASKS)
    return [digest_of(each.trajectory) for each in played if each.trajectory is not None]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("blocking", [False, True])
def test_the_next_episode_is_reset_while_a_policy_plays(blocking: bool, remote: bool) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1) as pool:
            alone = await pool.rollout(five_rolls, TASKS, seed=3)
        resets = Resets()
        environment: Any = resets.environment()
        with serving(environment) if remote else nullcontext(environment) as target:
            async with EnvPool(target, 1, backend="remote" if remote else "local", warm=1) as pool:
                policy: Any = resets.blocking if blocking else resets.later
                played = await pool.rollout(policy, TASKS, seed=3)
        assert digests(played) == digests(alone)
        assert resets.most == 1

    asyncio.run(asyncio.wait_for(play(), 120))


def test_a_worker_resets_the_next_episode_while_a_policy_plays(tmp_path: Path) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1) as pool:
            alone = await pool.rollout(five_rolls, TASKS, seed=3)
        environment = functools.partial(Marked, tmp_path)
        limits = Limits(episode_timeout_s=20)
        async with EnvPool(environment, 1, backend="process", workers=1, warm=1) as pool:
            played = await pool.rollout(Beside(tmp_path, len(TASKS)), TASKS, seed=3, limits=limits)
            assert all(each.trajectory and not each.trajectory.reason for each in played)
            assert digests(played) == digests(alone)
            assert digests(await pool.rollout(five_rolls_async, TASKS, seed=3)) == digests(alone)
            with pytest.raises(PoolError, match="make the policy async"):
                await pool.rollout(five_rolls, TASKS)

    asyncio.run(asyncio.wait_for(play(), 120))


def test_a_negative_number_of_warm_environments_is_refused() -> None:
    with pytest.raises(ValueError, match="warm is -1"):
        EnvPool(Dice, warm=-1)
