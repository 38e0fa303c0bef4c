"""Pools whose calls are cancelled, closed or blocked by large messages while they run."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from pool_worlds import Calls, Dice, calls, five_rolls

from mcpenv_client.pool import EnvPool, PoolError


def run(body: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body(), 120))


def test_a_late_answer_of_a_cancelled_step_is_not_taken_for_the_next() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2, backend="process", workers=2) as pool:
            await pool.reset_all(seeds=[1, 2])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pool.step_all([calls("hang", seconds=60), calls("hang", seconds=60)]), 0.5)
            (lost, _) = await pool.step_all([calls("roll"), None])
            assert lost is not None and lost.done and "a call was cancelled" in lost.info["error"]
            await pool.reset_all(["t1", "t2"], seeds=[1, 2])
            first = await pool.step_all([calls("roll"), calls("roll")])
            await pool.reset_all(["t1", "t2"], seeds=[1, 2])
            assert [each and each.text for each in await pool.step_all([calls("roll")] * 2)] == [
                each and each.text for each in first
            ]

    run(play)


def test_an_environment_without_an_episode_does_not_disturb_the_others() -> None:
    async def play(backend: Any) -> None:
        async with EnvPool(Dice, 2, backend=backend) as pool:
            await pool.reset_all(seeds=[1, None], which=[True, False])
            with pytest.raises(ValueError, match="environment 1 has no episode"):
                await pool.step_all([calls("hang", seconds=0.2), calls("roll")])
            (rolled, none) = await pool.step_all([calls("roll"), None])
            assert rolled is not None and len(rolled.observation.result.data) == 1 and none is None

    run(lambda: play("local"))
    run(lambda: play("process"))


@pytest.mark.parametrize("backend", ["local", "process"])
def test_closing_a_pool_ends_its_rollout_with_an_error(backend: Any) -> None:
    async def play() -> None:
        pool = EnvPool(Dice, 2, backend=backend)
        playing = asyncio.ensure_future(pool.rollout(Calls("hang", seconds=0.5), [f"t{n}" for n in range(10)]))
        while not pool._started:
            await asyncio.sleep(0.05)
        await pool.close()
        with pytest.raises(PoolError, match="the pool was closed while it played"):
            await asyncio.wait_for(playing, 30)

    run(play)


class Large:
    """A policy that is large, and whose answers are large."""

    def __init__(self) -> None:
        self.data = "x" * 1_000_000

    def __call__(self, episode: Any) -> str:
        return self.data


def test_large_messages_in_both_directions_do_not_block_each_other() -> None:
    rows = [{"task": f"t{number % 20}", "note": "y" * 200_000} for number in range(40)]

    async def play() -> None:
        async with EnvPool(Dice, 2, backend="process", workers=1) as pool:
            assert len(await pool.rollout(Large(), rows)) == 40

    run(play)


def test_a_target_that_cannot_be_loaded_is_refused_each_time() -> None:
    async def play() -> None:
        pool = EnvPool("nowhere_mcp", 2, backend="process", workers=1)
        for _ in range(2):
            with pytest.raises(PoolError, match="nowhere"):
                await pool.rollout(five_rolls)

    run(play)


class OnlyHere:
    """A policy, or an argument of a tool, that no other process can load."""

    def __reduce__(self) -> Any:
        return _loaded_in, (os.getpid(),)

    def __call__(self, episode: Any) -> None:
        raise AssertionError("it cannot get here")


def _loaded_in(process: int) -> OnlyHere:
    if process != os.getpid():
        raise ImportError("no module of that name here")
    return OnlyHere()


def test_what_a_worker_cannot_load_is_an_error_and_the_worker_goes_on() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1, backend="process", workers=1) as pool:
            with pytest.raises(PoolError, match="no module of that name here"):
                await pool.rollout(OnlyHere())
            await pool.reset_all()
            with pytest.raises(PoolError, match="no module of that name here"):
                await pool.step_all([OnlyHere()])
            assert (await pool.rollout(five_rolls))[0].status.usable

    run(play)
