"""Groups of episodes that are forks of one state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pool_worlds import Dice, Locked, Wild, five_rolls, five_rolls_async, wrong_at_three

from mcpenv.server.serve import serving
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Played, PolicyFailed, PoolError

TASKS = [f"t{number}" for number in range(4)]


class Dies:
    """A policy that ends its process in the first attempt at one episode, and otherwise rolls."""

    def __init__(self, marker: Path, number: int) -> None:
        self.marker, self.number = marker, number

    def __call__(self, episode: Any) -> int:
        if episode.assignment.number == self.number and not self.marker.exists():
            self.marker.touch()
            episode.call_tool("die")
        return five_rolls(episode)


def run(body: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body(), 120))


async def rollout(backend: Any, environment: Any, policy: Any, **options: Any) -> list[Played]:
    """Play groups of four on a backend."""
    if backend != "remote":
        async with EnvPool(environment, 2, backend=backend) as pool:
            return await pool.rollout(policy, TASKS, group=4, **options)
    with serving(environment) as url:
        async with EnvPool(url, 2, backend="remote") as pool:
            return await pool.rollout(policy, TASKS, group=4, **options)


def groups(played: list[Played]) -> list[list[Played]]:
    return [[each for each in played if each.assignment.group == group] for group in range(len(TASKS))]


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_forks_begin_from_one_state_where_resets_differ(backend: Any, policy: Any) -> None:
    async def play() -> None:
        apart = await rollout(backend, Wild, policy, seed=1)
        assert any(len({each.value for each in group}) > 1 for group in groups(apart))
        forked = await rollout(backend, Wild, policy, seed=1, forks=True)
        assert [each.assignment.number for each in forked] == list(range(16))
        for group in groups(forked):
            assert len({each.value for each in group}) == 1
            assert all(each.status.usable and each.attempts == 1 and each.trajectory for each in group)

    run(play)


@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_forks_have_the_trajectories_of_repeated_resets(backend: Any) -> None:
    async def play() -> None:
        apart = await rollout(backend, Dice, five_rolls, seed=1)
        forked = await rollout(backend, Dice, five_rolls, seed=1, forks=True)
        assert [each.assignment for each in forked] == [each.assignment for each in apart]
        for one, other in zip(forked, apart, strict=True):
            assert one.trajectory is not None and other.trajectory is not None
            assert digest_of(one.trajectory) == digest_of(other.trajectory)
            assert (one.reward, one.value) == (other.reward, other.value)
            assert (one.trajectory.seed, one.trajectory.task) == (other.trajectory.seed, other.trajectory.task)

    run(play)


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_an_environment_that_cannot_be_saved_is_refused_before_a_policy_runs(backend: Any, policy: Any) -> None:
    async def play() -> None:
        with pytest.raises(PoolError, match=r"cannot be forks of one state: .*lock.*Without forks=True"):
            await rollout(backend, Locked, policy, forks=True)

    run(play)


def test_a_group_that_is_lost_is_begun_again_as_a_whole(tmp_path: Path) -> None:
    async def play() -> None:
        played = await rollout("process", Wild, Dies(tmp_path / "died", 6), seed=1, forks=True)
        assert [max(each.attempts for each in group) for group in groups(played)] == [1, 2, 1, 1]
        assert all(each.status.usable for each in played)
        assert all(len({each.value for each in group}) == 1 for group in groups(played))

    run(play)


@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_a_fork_after_one_whose_policy_failed_is_played(backend: Any) -> None:
    async def play() -> None:
        with pytest.raises(PolicyFailed, match="a mistake of the policy") as failed:
            await rollout(backend, Wild, wrong_at_three, forks=True)
        finished = [each.assignment.number for each in failed.value.finished]
        assert {0, 1, 2} <= set(finished)  # the rest of its group
        assert 3 in [each.number for each in failed.value.unfinished]
        played = await rollout(backend, Wild, wrong_at_three, forks=True, policy_errors="record")
        assert [each.assignment.number for each in played if not each.status.usable] == [3]

    run(play)


def test_forks_are_refused_where_there_are_none() -> None:
    async def play() -> None:
        pool = EnvPool(Dice, 2)
        with pytest.raises(ValueError, match="forks=True needs groups"):
            await pool.rollout(five_rolls, TASKS, forks=True)

    run(play)
