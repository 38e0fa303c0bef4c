"""Streams of episodes: several plays at once, tasks read as they are needed, pauses, and what a play leaves."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pool_worlds import (
    Calls,
    Counts,
    CountsBlocking,
    Dice,
    RollsAround,
    calls,
    five_rolls,
    five_rolls_async,
    grinds,
    held_by_a_pause,
    wrong_at_three,
)
from test_env_pool import KINDS, TASKS, digests, run

from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, StatusCode
from mcpenv_client.pool import EnvPool, Played, PolicyFailed, PoolError, TaskSampler
from mcpenv_client.pool.clock import Clock
from mcpenv_client.rows import Rows
from mcpenv_client.types.records import Trajectory


class Source:
    """An endless source of tasks, which counts what is read and keeps what it is told."""

    def __init__(self) -> None:
        self.read = 0
        self.told: list[Played] = []

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            self.read += 1
            yield f"t{number % 20}"

    def record(self, played: Played) -> None:
        self.told.append(played)


async def later() -> AsyncIterator[str]:
    for number in itertools.count():
        await asyncio.sleep(0)
        yield f"t{number % 20}"


@pytest.mark.parametrize(("policy", "other"), [(five_rolls, five_rolls_async), (five_rolls_async, five_rolls)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_runs_inside_the_loop_of_a_play(kind: Any, policy: Any, other: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            expected = digests(await pool.rollout(policy, TASKS, n=3, seed=5))
            evaluated = digests(await pool.rollout(other, TASKS, seed=9))
            played: list[Played] = []
            async for each in pool.play(policy, TASKS, n=3, seed=5):
                played.append(each)
                if len(played) % 6 == 1:
                    assert digests(await pool.rollout(other, TASKS, seed=9)) == evaluated
            played.sort(key=lambda each: each.assignment.number)
            assert digests(played) == expected and all(each.attempts == 1 for each in played)

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_plays_beside_each_other_share_the_places_and_keep_their_policies(kind: Any) -> None:
    async def take(stream: Any, number: int) -> list[Played]:
        async with stream:
            return [each async for each, _ in _zip(stream, range(number))]

    async def play() -> None:
        async with kind() as pool:
            policies = [five_rolls, five_rolls_async, Calls("roll", times=3)]
            streams = [pool.play(policy, Source(), seed=1) for policy in policies]
            one, other, third = await asyncio.gather(*(take(stream, 12) for stream in streams))
            assert all(isinstance(each.value, int) and each.trajectory for each in [*one, *other])
            assert all(isinstance(each.value, str) and each.trajectory for each in third)
            with pytest.raises(PolicyFailed, match="a mistake of the policy"):
                await asyncio.gather(pool.rollout(wrong_at_three, TASKS), pool.rollout(five_rolls, TASKS))
            assert len(await pool.rollout(five_rolls, TASKS)) == 6

    run(play)


async def _zip(stream: Any, numbers: range) -> AsyncIterator[tuple[Played, int]]:
    for number in numbers:
        yield await anext(stream), number


@pytest.mark.parametrize("kind", KINDS)
def test_steps_beside_a_play_are_refused_and_not_waited_for(kind: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            await pool.reset_all(seeds=[1, 2, 3, 4])
            async for _ in pool.play(five_rolls, Source(), seed=1):
                with pytest.raises(PoolError, match="cannot run beside a rollout of the same pool"):
                    await pool.reset_all()
                with pytest.raises(PoolError, match="cannot run beside a rollout"):
                    await pool.step_all([calls("roll")] * 4)
                break
            assert len(await pool.reset_all(seeds=[1, 2, 3, 4])) == 4  # the play ended with its loop
            assert all(each is not None for each in await pool.step_all([calls("roll")] * 4))

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_read_as_places_become_free_and_the_source_is_told(kind: Any) -> None:
    async def play() -> None:
        source = Source()
        async with kind() as pool:
            async with pool.play(five_rolls_async, source, seed=1) as stream:
                for number in range(1, 10):
                    played = await anext(stream)
                    assert source.read <= number + 4  # the environments, and one for the place that is free again
                    assert source.told[-1] is played and len(source.told) == number
            async with pool.play(five_rolls, later(), group=2, seed=1) as stream:
                groups = [(await anext(stream)).assignment.group for _ in range(8)]
        assert max(groups) < 8

    run(play)


def test_a_slow_draw_of_a_sampler_does_not_hold_the_play_of_the_others() -> None:
    read, asked, go_on = list[int](), threading.Event(), threading.Event()

    def slow(start: int, stop: int) -> list[Any]:
        read.append(start)
        if len(read) == 4:
            asked.set()
            assert go_on.wait(60), "the event loop is blocked by the read of a row"
        return [Dice.tasks.find(f"t{number % 20}") for number in range(start, stop)]

    async def play() -> None:
        sampler = TaskSampler(Rows(range(20), slow, "train"))
        async with EnvPool(Dice, 2) as pool, pool.play(five_rolls, sampler, seed=1) as stream:
            coming = asyncio.ensure_future(_take(stream, 6))
            while not asked.is_set():
                await asyncio.sleep(0.01)
            assert len(await pool.rollout(five_rolls, TASKS)) == 6
            go_on.set()
            assert len(await coming) == 6

    run(play)


async def _take(stream: Any, number: int) -> list[Played]:
    return [await anext(stream) for _ in range(number)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_server_of_rows_is_named_and_costs_no_finished_episode(kind: Any) -> None:
    async def play() -> None:
        with ExitStack() as stack:
            url = stack.enter_context(serving(Dice))
            rows = await EnvClient(url).rows("train")
            sampler = TaskSampler(rows)
            told: list[Played] = []

            def record(played: Played) -> None:
                told.append(played)
                if len(told) == 3:
                    rows._kept.clear()
                    stack.close()

            sampler.record = record  # type: ignore[method-assign]
            async with kind() as pool:
                with pytest.raises(PoolError, match=f"the source of tasks failed: ConnectionFailed: .*{url}") as failed:
                    await pool.rollout(five_rolls, sampler, seed=1)
        assert failed.value.finished == sorted(told, key=lambda each: each.assignment.number) and len(told) >= 3

    run(play)


def test_a_generator_of_many_tasks_is_not_read_before_its_first_episode() -> None:
    async def play() -> None:
        tasks = (f"t{number % 20}" for number in range(10_000))
        async with EnvPool(Dice, 4) as pool:
            async with pool.play(five_rolls, tasks) as stream:
                await anext(stream)
            assert len(list(tasks)) >= 10_000 - 5

    run(play)


class Forgetful(Source):
    """A source that fails at its ninth task, or at the second result that it is told."""

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def __iter__(self) -> Iterator[str]:
        for task in super().__iter__():
            if self.fails == "iter" and self.read == 9:
                raise KeyError("no more tasks")
            yield task

    def record(self, played: Played) -> None:
        super().record(played)
        if self.fails == "record" and len(self.told) == 2:
            raise KeyError("no more tasks")


@pytest.mark.parametrize("fails", ["iter", "record"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_finished_episode_is_lost_to_a_source_that_fails(kind: Any, fails: str) -> None:
    async def play() -> None:
        played = []
        async with kind() as pool:
            stream = pool.play(five_rolls, Forgetful(fails))
            with pytest.raises(PoolError, match="the source of tasks failed: KeyError: 'no more tasks'") as failed:
                async for each in stream:
                    played.append(each.assignment.number)
            assert isinstance(failed.value.__cause__, KeyError) and failed.value.unfinished == stream.unfinished
            found = [*played, *(each.number for each in stream.unfinished)]
            assert len(played) >= 2 and sorted(found) == [*range(len(found))]
            with pytest.raises(PoolError, match="the source of tasks failed: KeyError") as failed:
                await pool.rollout(five_rolls, Forgetful(fails))
            left = [*(each.assignment for each in failed.value.finished), *failed.value.unfinished]
            assert len(failed.value.finished) >= 2 and sorted(each.number for each in left) == [*range(len(left))]
            assert len(await pool.rollout(five_rolls, TASKS)) == 6

    run(play)


def test_an_error_of_the_source_ends_the_play() -> None:
    def broken() -> Iterator[str]:
        yield "t1"
        raise KeyError("no more tasks")

    async def play() -> None:
        async with EnvPool(Dice, 2) as pool:
            with pytest.raises(PoolError, match="no more tasks"):
                await pool.rollout(five_rolls, broken())
            with pytest.raises(ValueError, match="a row needs 'task'"):
                pool.play(five_rolls, ["t1", {"wrong": 1}])  # a list is checked at once
            assert len(await pool.rollout(five_rolls, TASKS)) == 6

    run(play)


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
@pytest.mark.parametrize("kind", KINDS)
def test_unfinished_episodes_are_begun_again_by_the_next_play(kind: Any, policy: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            expected = digests(await pool.rollout(policy, TASKS, group=2, seed=3))
            rest = iter(TASKS)
            async with pool.play(policy, rest, group=2, seed=3) as stream:
                played = [await anext(stream) for _ in range(3)]
            assert stream.unfinished
            begun = {each.assignment.number for each in played} | {each.number for each in stream.unfinished}
            assert begun == set(range(len(begun)))  # nothing that was read is lost
            played += await pool.rollout(policy, rest, group=2, seed=3, unfinished=stream.unfinished)
            played.sort(key=lambda each: each.assignment.number)
            assert digests(played) == expected
            assert [each.assignment.number for each in played] == list(range(12))

    run(play)


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_groups_are_begun_again_after_groups_and_samples_were_left(kind: Any, forks: bool) -> None:
    async def play() -> None:
        source, numbers = Source(), list[int]()
        async with kind() as pool:
            options: dict[str, Any] = {"group": 3, "seed": 3, "forks": forks}
            async with pool.groups(five_rolls, source, **options) as groups:
                numbers += [each.assignment.number for _ in range(2) for each in await anext(groups)]
            assert sorted([*numbers, *(each.number for each in groups.unfinished)]) == [*range(3 * source.read)]
            async with pool.samples(writes, source, **options, unfinished=groups.unfinished) as samples:
                first = [await anext(samples) for _ in range(4)]
            assert len({sample.group for sample in first}) == 2
            assert {3 * sample.group + number for sample in first[:3] for number in range(3)}.isdisjoint(
                each.number for each in samples.unfinished
            )
            left = sorted(each.number for each in samples.unfinished)
            assert first[3].group in [each.group for each in samples.unfinished]  # not all of its samples were yielded
            assert sorted([*numbers, *(3 * (first[0].group or 0) + number for number in range(3)), *left]) == [
                *range(3 * source.read)
            ]
            rest = pool.groups(five_rolls, [], **options, unfinished=samples.unfinished)
            assert sorted([each.assignment.number for group in [g async for g in rest] for each in group]) == left
            assert len(source.told) == len({id(each) for each in source.told}) >= 10

    run(play)


async def writes(episode: Any) -> None:
    episode.wrote([1], [2])
    await episode.call_tool("roll")


def test_the_rest_of_a_group_of_which_a_part_was_yielded_is_a_group() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1) as pool:
            async with pool.play(five_rolls, TASKS, group=3, seed=3) as stream:
                assert [(await anext(stream)).assignment.number for _ in range(2)] == [0, 1]
            groups = pool.groups(five_rolls, ["t9"], group=3, seed=3, unfinished=stream.unfinished)
            found = [[each.assignment.number for each in group] async for group in groups]
        assert found[0] == [2] and [len(group) for group in found[1:]] == [3] * (len(found) - 1)

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_what_had_finished_of_a_group_is_in_the_error_that_ends_its_play(kind: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            groups = pool.groups(five_rolls, Forgetful("record"), group=20, seed=3)  # more than may finish
            with pytest.raises(PoolError, match="no more tasks") as failed:
                await anext(groups)
        done = {each.assignment.number for each in failed.value.finished}
        assert len(done) >= 2 and done <= {each.number for each in groups.unfinished}
        assert failed.value.unfinished == groups.unfinished

    run(play)


@pytest.mark.parametrize("policy", [Counts, CountsBlocking])
@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_a_pause_before_the_first_play_holds(backend: Any, policy: Any, tmp_path: Path) -> None:
    async def play() -> None:
        with serving(Dice) as url:
            pool = EnvPool(url if backend == "remote" else Dice, 2, backend=backend)
            pool.pause()
            async with pool:
                playing = asyncio.ensure_future(pool.rollout(policy(tmp_path), ["t1"], trajectories=False))
                await asyncio.wait([playing], timeout=1.0)
                assert not (tmp_path / "calls").exists()
                (tmp_path / "stop").touch()
                pool.resume()
                (played,) = await playing
                assert played.status.code is StatusCode.COMPLETED

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_left_and_entered_again_goes_on_with_the_same_episodes(kind: Any, tmp_path: Path) -> None:
    async def play() -> None:
        async with kind() as pool, pool.play(RollsAround(tmp_path), TASKS, seed=3, retries=0) as stream:
            async for played in stream:
                first = played
                break
            while len(await asyncio.to_thread(os.listdir, tmp_path)) < 4:  # as many begin as there are environments
                await asyncio.sleep(0.01)
            pool.pause()
            (tmp_path / "go").touch()
            pool.resume(policy_version=1)
            rest = [each async for each in stream]
        assert first.assignment.number == 0
        assert sorted(each.assignment.number for each in rest) == [1, 2, 3, 4, 5]
        assert {each.status.code for each in rest} == {StatusCode.COMPLETED} and stream.unfinished == []
        # The prompt, and two calls with their answers: the conversation and the session are those of the beginning.
        assert {each.value for each in rest} == {5}
        assert {len(each.trajectory.steps) for each in rest if each.trajectory} == {2}
        assert [(tmp_path / f"began-{number}").read_text() for number in range(6)] == ["1"] * 6

    run(play)


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
@pytest.mark.parametrize("kind", KINDS)
def test_without_trajectories_the_results_are_the_same(kind: Any, policy: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            whole = await pool.rollout(policy, TASKS, group=2, seed=3)
            short = await pool.rollout(policy, TASKS, group=2, seed=3, trajectories=False)
            assert [_result(each) for each in short] == [_result(each) for each in whole]
            assert all(each.trajectory is None for each in short)
            forked = await pool.rollout(policy, TASKS, group=2, seed=3, trajectories=False, forks=True)
            assert [_result(each) for each in forked] == [_result(each) for each in whole]
            (burst,) = await pool.rollout(Calls("burst"), ["t1"], retries=0, trajectories=False)
            (kept,) = await pool.rollout(Calls("burst"), ["t1"], retries=0)
            assert _result(burst)[:4] == _result(kept)[:4]  # the value names an incident

    run(play)


def test_samples_need_the_trajectories() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2) as pool:
            with pytest.raises(ValueError, match="leave trajectories=False out"):
                await anext(pool.samples(five_rolls, TASKS, trajectories=False))

    run(play)


def _result(played: Played) -> Any:
    return played.assignment, played.status, played.reward, played.parts, played.value, played.error


def test_without_trajectories_a_server_is_not_asked_for_them() -> None:
    class NoRecords(EnvClient):
        async def trajectory(self) -> Trajectory:
            raise AssertionError("a trajectory was fetched")

    async def play() -> None:
        with serving(Dice) as url:
            async with EnvPool(url, 2, backend="remote", connect=NoRecords) as pool:
                assert len(await pool.rollout(five_rolls, TASKS, trajectories=False)) == 6
                with pytest.raises(PoolError, match="a trajectory was fetched"):
                    await pool.rollout(five_rolls, TASKS)

    run(play)


@pytest.mark.parametrize("policy", [Counts, CountsBlocking])
@pytest.mark.parametrize("kind", KINDS)
def test_episodes_wait_while_the_pool_is_paused(kind: Any, policy: Any, tmp_path: Path) -> None:
    async def play() -> None:
        async with kind() as pool:
            playing = asyncio.ensure_future(pool.rollout(policy(tmp_path), ["t1"], trajectories=False))
            assert await held_by_a_pause(pool, playing, tmp_path)
            pool.resume()
            (played,) = await playing
            assert played.status.code is StatusCode.COMPLETED
            pool.pause()
            playing = asyncio.ensure_future(pool.rollout(five_rolls, ["t1"]))
            await asyncio.wait([playing], timeout=0.1)
        await asyncio.gather(playing, return_exceptions=True)  # closing continues what waits

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_that_holds_the_interpreter_is_slow_and_nothing_else(kind: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            played = await pool.rollout(grinds, TASKS[:3], seed=0)
        assert {each.attempts for each in played} == {1} and [each.value for each in played] == ["ground"] * 3
        assert {each.status.code for each in played} == {StatusCode.COMPLETED}
        async with EnvPool(Dice, 4) as local:
            assert digests(played) == digests(await local.rollout(grinds, TASKS[:3], seed=0))

    run(play)


def test_a_stopped_clock_does_not_reach_a_deadline() -> None:
    async def limit() -> None:
        clock = Clock()
        clock.stop()
        assert clock.now() == clock.now()
        call = asyncio.ensure_future(clock.limited(asyncio.Event().wait(), clock.now() + 0.01))
        done, _ = await asyncio.wait([call], timeout=0.2)
        assert not done
        clock.start()
        with pytest.raises(asyncio.TimeoutError):
            await call

    run(limit)


def test_a_worker_that_is_killed_for_a_cancelled_play_does_not_cost_the_others_an_attempt(tmp_path: Path) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 4, backend="process", workers=1) as pool:
            expected = digests(await pool.rollout(five_rolls_async, TASKS, seed=0))
            beside = asyncio.ensure_future(pool.rollout(five_rolls_async, Source(), seed=0))
            played: list[Played] = []
            async with pool.play(five_rolls_async, TASKS, seed=0, retries=0) as stream:
                async for each in stream:
                    played.append(each)
                    if len(played) == 2:
                        beside.cancel()
                        await asyncio.gather(beside, return_exceptions=True)
            played.sort(key=lambda each: each.assignment.number)
            assert digests(played) == expected and all(each.status.usable for each in played)

    run(play)
