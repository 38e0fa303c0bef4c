"""The errors of plays: what had finished, and the cause, also from other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pool_worlds import Dice, five_rolls, five_rolls_async
from trainer_worlds import FullDisk

from mcpenv.server.serve import serving
from mcpenv_client import ConnectionFailed, InvalidMessage, StatusCode
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode, Played, PolicyFailed, PoolError
from mcpenv_client.pool.remote_errors import RemoteTraceback


def run(body: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body, 120))


class Odd(Exception):
    """An error that cannot be loaded: its class takes two arguments and keeps one."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


def missing_key(episode: BlockingEpisode) -> None:
    if episode.assignment.number == 3:
        raise KeyError("a mistake of the policy")
    five_rolls(episode)


def odd(episode: BlockingEpisode) -> None:
    raise Odd("one", "other")


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
def test_a_rollout_whose_servers_die_hands_over_what_had_finished_and_the_cause(policy: Any) -> None:
    async def play(url: str, server: Any) -> None:
        pool = EnvPool([url], 2, backend="remote")
        pool._backend._servers.wait_s = 2.0  # type: ignore[attr-defined]

        def tasks() -> Any:
            for number in range(40):
                if number == 12:
                    server.__exit__(None, None, None)
                yield f"t{number % 20}"

        async with pool:
            with pytest.raises(PoolError, match="no server has had room") as failed:
                await pool.rollout(policy, tasks(), seed=1)
        finished = failed.value.finished
        numbers = [each.assignment.number for each in finished]
        assert numbers == sorted(set(numbers)) and len(numbers) >= 8
        assert sum(each.status.usable and each.reward is not None for each in finished) >= 8
        assert isinstance(failed.value.__cause__, ConnectionFailed)

    server = serving(Dice)
    run(play(server.__enter__(), server))


def test_a_pool_without_servers_names_the_cause() -> None:
    with serving(Dice) as url:
        pass
    with pytest.raises(PoolError, match="no server answers") as failed:
        run(EnvPool([url], 2, backend="remote").rollout(five_rolls))
    assert isinstance(failed.value.__cause__, ConnectionFailed) and not failed.value.finished


@pytest.mark.parametrize("backend", ["local", "process"])
def test_an_error_of_the_policy_has_its_cause_and_what_had_finished(backend: Any) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1, backend=backend) as pool:
            with pytest.raises(PolicyFailed) as failed:
                await pool.rollout(missing_key, [f"t{number}" for number in range(6)])
        assert [each.assignment.number for each in failed.value.finished] == [0, 1, 2]
        cause = failed.value.__cause__
        assert isinstance(cause, KeyError) and cause.args == ("a mistake of the policy",)
        if backend == "process":
            assert isinstance(cause.__cause__, RemoteTraceback)
            assert "in missing_key" in str(cause.__cause__) and str(failed.value) in str(cause.__cause__)

    run(play())


def test_an_error_that_cannot_be_sent_arrives_as_its_traceback() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1, backend="process") as pool:
            with pytest.raises(PolicyFailed) as failed:
                await pool.rollout(odd, ["t1"])
        cause = failed.value.__cause__
        assert isinstance(cause, RemoteTraceback) and "in odd" in str(cause)

    run(play())


def test_a_refusal_of_a_worker_has_the_traceback_of_its_process() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1, backend="process") as pool:
            with pytest.raises(PoolError, match="nowhere") as failed:
                await pool.rollout(five_rolls, ["nowhere"])
        refusal = failed.value.__cause__
        assert isinstance(refusal, InvalidMessage) and isinstance(refusal.__cause__, RemoteTraceback)
        assert "play_blocking" in str(refusal.__cause__)

    run(play())


def saves_twice(episode: BlockingEpisode) -> None:
    episode.call_tool("save")
    if not episode.done:
        episode.call_tool("save")


async def saves_twice_async(episode: Episode) -> None:
    await episode.call_tool("save")
    if not episode.done:
        await episode.call_tool("save")


async def writes_and_saves(episode: Episode) -> None:
    episode.wrote([1], [2])
    await saves_twice_async(episode)


@pytest.fixture(params=["local", "remote"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], EnvPool]]:
    """Return the maker of a pool of one environment whose disk can be full."""
    monkeypatch.setattr(FullDisk, "full", 0)
    if request.param == "local":
        yield lambda: EnvPool(FullDisk, 1)
    else:
        with serving(FullDisk) as url:
            yield lambda: EnvPool([url], 1, backend="remote")


@pytest.mark.parametrize("trajectories", [True, False])
@pytest.mark.parametrize("policy", [saves_twice, saves_twice_async])
def test_an_episode_with_a_failed_step_is_begun_again_and_then_masked(
    full_disk: Callable[[], EnvPool], policy: Any, trajectories: bool
) -> None:
    async def play(full: int, **options: Any) -> Played:
        FullDisk.full = full
        async with full_disk() as pool:
            (played,) = await pool.rollout(policy, ["save"], retries=1, trajectories=trajectories, **options)
        assert (played.trajectory is not None) == trajectories
        return played

    plain = run(play(1))
    assert (plain.attempts, plain.reward, plain.status.code) == (1, 1.0, StatusCode.COMPLETED)
    again = run(play(1, mask_failed_steps=True))
    assert (again.attempts, again.reward, again.status.code) == (2, 1.0, StatusCode.COMPLETED)
    masked = run(play(3, mask_failed_steps=True))  # two in the first attempt, one in the second
    assert (masked.attempts, masked.reward, masked.status.code) == (2, None, StatusCode.ENV_ERROR)
    assert masked.error == "a step failed: env_error" and masked.ended


def test_samples_begin_such_an_episode_again_unless_they_are_told_otherwise(full_disk: Callable[[], EnvPool]) -> None:
    async def play(**options: Any) -> Any:
        FullDisk.full = 1
        async with full_disk() as pool:
            (sample,) = [each async for each in pool.samples(writes_and_saves, ["save"], **options)]
        return sample

    sample = run(play())
    assert (sample.usable, sample.reward) == (True, 1.0)
    assert run(play(retries=0)).usable is False
    kept = run(play(mask_failed_steps=False))
    assert (kept.usable, kept.reward, kept.advantage) == (True, 1.0, None)
