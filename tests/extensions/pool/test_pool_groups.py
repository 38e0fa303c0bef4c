"""Groups of a pool: stragglers, stale samples, and several worlds in one play."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from pool_worlds import Dice

from mcpenv import MCPEnvironment, TaskSet
from mcpenv_client.pool import EnvPool, MixedPool, PolicyFailed, TaskSampler, mixed
from mcpenv_client.samples import Sample, SampledTurn


class Coin(MCPEnvironment):
    """Flip a coin."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet({"id": f"t{number}", "prompt": "Flip."} for number in range(6))

    def __init__(self) -> None:
        @self.tool
        def flip() -> str:
            """Flip it."""
            return "heads"

    def verify(self, evidence: object) -> bool:
        return True


async def one_roll(episode: Any) -> None:
    episode.wrote([1], [2, 3], policy_version=episode.assignment.sample)
    await episode.call_tool("roll", {})


def test_a_straggler_does_not_hold_its_group_or_others() -> None:
    async def body() -> None:
        late = asyncio.Event()

        async def policy(episode: Any) -> str:
            if episode.assignment.group == 1 and episode.assignment.sample == 2:
                await late.wait()
            await episode.call_tool("roll", {})
            return str(episode.assignment.sample)

        async with EnvPool(Dice, 8) as pool:
            groups = pool.groups(policy, ["t1", "t2", "t3"], group=3, seed=1, group_timeout_s=0.5)
            found: dict[int, list[Any]] = {}
            async for group in groups:
                found[group[0].assignment.group] = [played.value for played in group]
                if len(found) == 3:
                    late.set()  # it ends when its group has gone on without it
            assert found == {0: ["0", "1", "2"], 1: ["0", "1"], 2: ["0", "1", "2"]}
            again = [each async for each in pool.groups(policy, ["t2"], group=2, seed=1)]
            assert [[played.value for played in group] for group in again] == [["0", "1"]]

    asyncio.run(body())


def test_a_hundred_groups_come_in_the_order_of_their_ends_beside_a_straggler_of_ten_minutes() -> None:
    async def body() -> None:
        order = [number + 1 if number % 2 else number - 1 for number in range(1, 101)]
        may_end = {number: asyncio.Event() for number in (*order, 101)}
        stopped: list[int] = []

        async def policy(episode: Any) -> None:
            if episode.assignment.group:
                await may_end[episode.assignment.group].wait()
            elif episode.assignment.sample:
                try:
                    await asyncio.sleep(600)
                finally:
                    stopped.append(episode.assignment.group)

        found: list[int] = []
        async with EnvPool(Dice, 8) as pool:
            may_end[order[0]].set()
            async with aclosing(pool.groups(policy, itertools.repeat("t1", 102), group=2, seed=1)) as groups:
                async for group in groups:
                    found.append(group[0].assignment.group)
                    if len(found) == 100:
                        break
                    may_end[order[len(found)]].set()  # no other group can end
            assert found == order and stopped == [0]

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_rollout_of_several_worlds_is_in_order_and_hands_over_what_had_finished() -> None:
    rows = [{"world": world, "task": "t1", "seed": 1} for world in ("dice", "coin", "dice", "coin")]

    async def body() -> None:
        async def fails_last(episode: Any) -> None:
            if episode.assignment.number == 3:
                raise RuntimeError("no more")

        async with MixedPool({"dice": Dice, "coin": Coin}, size=1) as pool:
            played = await pool.rollout(fails_last, rows, policy_errors="record")
            assert [each.assignment.row for each in played] == rows
            with pytest.raises(PolicyFailed, match="no more") as raised:
                await pool.rollout(fails_last, rows)
            left = {each.number for each in raised.value.unfinished}
            assert left == {0, 1, 2, 3} - {each.assignment.number for each in raised.value.finished}

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_time_limit_of_a_group_stops_during_a_pause() -> None:
    async def body() -> None:
        async def straggles(episode: Any) -> int:
            if episode.assignment.sample:
                begun.set()
                await late.wait()
            else:
                await begun.wait()
                paused.pause()
            return int(episode.assignment.sample)

        async def never_ends(episode: Any) -> None:
            if episode.assignment.sample:
                await asyncio.Event().wait()

        begun, late = asyncio.Event(), asyncio.Event()
        async with EnvPool(Dice, 2) as paused, EnvPool(Dice, 2) as other:
            coming = asyncio.ensure_future(
                anext(paused.groups(straggles, ["t1"], group=2, seed=1, group_timeout_s=0.1))
            )
            cut = await anext(other.groups(never_ends, ["t1"], group=2, seed=1, group_timeout_s=0.5))
            assert len(cut) == 1  # so the time of the first pool's group has passed
            late.set()
            assert [played.value for played in await coming] == [0, 1]

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_loop_over_groups_may_be_left() -> None:
    async def body() -> None:
        async with EnvPool(Dice, 2) as pool:
            for _ in range(2):
                async for group in pool.groups(one_roll, itertools.repeat("t1"), group=2, seed=1, group_timeout_s=60):
                    assert len(group) == 2
                    break
            assert len(await pool.rollout(one_roll, ["t1"], group=4, seed=1)) == 4

    asyncio.run(body())


def test_stale_samples_are_not_usable() -> None:
    async def body() -> list[tuple[int | None, bool]]:
        async with EnvPool(Dice, 2) as pool:
            pool.pause()
            pool.resume(policy_version=3)
            samples = pool.samples(one_roll, ["t1"], group=4, seed=1, max_staleness=2)
            return [(sample.policy_version, sample.usable) async for sample in samples]

    found = asyncio.run(body())
    assert [version for version, _ in found] == [0, 1, 2, 3]
    scored = [usable for _, usable in found][1:]
    assert found[0][1] is False and len(set(scored)) == 1


def rows(split: str = "train") -> Iterator[dict[str, Any]]:
    for number in range(6):
        yield {"world": "dice" if number % 3 else "coin", "task": f"t{number}"}


async def by_world(episode: Any) -> str:
    tools = [tool.name for tool in await episode.list_tools()]
    await episode.call_tool("roll" if "roll" in tools else tools[0], {})
    return "roll" if "roll" in tools else "other"


async def later() -> AsyncIterator[dict[str, Any]]:
    for row in rows():
        await asyncio.sleep(0)
        yield row


@pytest.mark.parametrize("source", [lambda: list(rows()), rows, later], ids=["list", "iterator", "async iterator"])
def test_rows_of_several_worlds_are_played_in_their_own(source: Any) -> None:
    async def body() -> None:
        async with MixedPool({"dice": Dice, "coin": EnvPool(Coin, 2)}, size=3) as pool:
            async with pool.play(by_world, source(), group=2, seed=5) as stream:
                played = [each async for each in stream]
        assert sorted(each.assignment.number for each in played) == list(range(12))
        for each in played:
            assert each.status.usable, each.error
            assert each.value == ("roll" if each.assignment.row["world"] == "dice" else "other")
            assert each.assignment.group == each.assignment.number // 2
        assert stream.unfinished == []

    asyncio.run(body())


@pytest.fixture
def few_ahead(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(mixed, "AHEAD", 20)
    return 20


def test_a_world_without_rows_does_not_hold_the_others_and_reads_a_bounded_number_ahead(few_ahead: int) -> None:
    read: list[int] = []
    found: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            read.append(number)
            assert number < len(found) + few_ahead + 10, "it reads without end"
            yield {"world": "coin", "task": f"t{number % 6}"}

    async def body() -> None:
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            async with pool.play(by_world, endless()) as stream:
                while len(found) < 60:
                    found.append((await anext(stream)).assignment.number)
            assert len(read) >= 60 + few_ahead
            assert sorted([*found, *(each.number for each in stream.unfinished)]) == read

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_rare_world_is_reached_though_many_rows_of_others_come_before(few_ahead: int) -> None:
    async def body() -> None:
        many = itertools.repeat({"world": "coin", "task": "t1"}, 3 * few_ahead)
        source = itertools.chain(many, [{"world": "dice", "task": "t1"}])
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            async with pool.play(by_world, source, trajectories=False) as stream:
                values = Counter([played.value async for played in stream])
        assert values == {"other": 3 * few_ahead, "roll": 1}

    asyncio.run(asyncio.wait_for(body(), 60))


class Rows:
    """An async source of rows of two worlds, which waits in its middle until it may go on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.read = 0
        self.may_go_on = asyncio.Event()

    def __aiter__(self) -> Rows:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self.read == self.number // 2:
            await self.may_go_on.wait()
        if self.read == self.number:
            raise StopAsyncIteration
        self.read += 1
        return {"world": "dice" if self.read % 3 else "coin", "task": f"t{self.read % 6}"}


@pytest.mark.parametrize("taken", [0, 1, 5, 10])
def test_what_a_play_of_a_slow_world_leaves_is_begun_again_once(taken: int) -> None:
    async def body() -> None:
        async def slow(episode: Any) -> None:
            await asyncio.Event().wait()

        source, before = Rows(60), asyncio.all_tasks()
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            async with pool.play({"dice": slow, "coin": by_world}, source, group=2, seed=1) as stream:
                coming = asyncio.ensure_future(anext(stream))
                played = [await coming] if taken else []
                played += [await anext(stream) for _ in range(1, taken)]
                coming.cancel()
                await asyncio.wait({coming})
            left = [each.number for each in stream.unfinished]
            assert sorted([*left, *(each.assignment.number for each in played)]) == list(range(2 * source.read))
            assert asyncio.all_tasks() == before  # nothing reads on

            source.may_go_on.set()
            async with pool.play(by_world, source, group=2, seed=1, unfinished=stream.unfinished) as again:
                played += [each async for each in again]
            assert sorted(each.assignment.number for each in played) == list(range(120))
            groups = Counter((each.assignment.group, each.assignment.row["task"]) for each in played)
            assert len(groups) == 60 and set(groups.values()) == {2} and again.unfinished == []

    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_paused_mixed_pool_plays_in_no_world() -> None:
    async def body() -> None:
        begun, called = asyncio.Semaphore(0), list[str]()
        paused = asyncio.Event()

        async def policy(episode: Any) -> None:
            begun.release()
            await paused.wait()
            await by_world(episode)
            called.append(episode.assignment.row["world"])

        async with MixedPool({"dice": Dice, "coin": Coin}, size=1) as pool, EnvPool(Dice, 1) as other:
            async with pool.play(policy, [{"world": "dice", "task": "t1"}, {"world": "coin", "task": "t1"}]) as stream:
                coming = asyncio.ensure_future(anext(stream))
                for _ in pool.pools:
                    await begun.acquire()
                pool.pause()
                paused.set()
                assert len(await other.rollout(by_world, ["t1"] * 20)) == 20
                assert called == [] and not coming.done()
                pool.resume(policy_version=4)
                await coming
                assert [each.status.usable async for each in stream] == [True]
            assert sorted(called) == ["coin", "dice"]
            assert {each.policy_version for each in (pool, *pool.pools.values())} == {4}

    asyncio.run(asyncio.wait_for(body(), 60))


def test_an_episode_has_the_version_of_its_oldest_turn() -> None:
    async def policy(episode: Any) -> None:
        for version in (None, 5, 3, 4)[: episode.assignment.number]:
            episode.wrote([1], [2], policy_version=version)

    async def body() -> list[int | None]:
        async with EnvPool(Dice, 2) as pool:
            return [each.policy_version for each in await pool.rollout(policy, ["t1"] * 4)]

    assert asyncio.run(body()) == [None, None, 5, 3]


def test_an_episode_whose_policy_names_no_version_has_that_of_the_pool_at_its_beginning() -> None:
    async def policy(episode: Any) -> Any:
        number = episode.assignment.number
        if number < 2:
            return SampledTurn([1], [2], policy_version=6 if number else None)
        if number == 2:
            return [Sample([1, 2], [0, 1])]
        for version in (None, 8):
            episode.wrote([1], [2], policy_version=version)
        return None

    async def body() -> tuple[list[int | None], list[tuple[int | None, bool]]]:
        async with EnvPool(Dice, 1) as pool:
            pool.resume(policy_version=7)
            played = await pool.rollout(policy, ["t1"] * 4)
            found = pool.samples(policy, ["t1"] * 4, max_staleness=0)
            return [each.policy_version for each in played], [
                (each.policy_version, each.usable) async for each in found
            ]

    versions, samples = asyncio.run(body())
    assert versions == [7, 6, 7, 7]
    # The last has two pieces, because its second prompt lacks the first answer.
    assert [version for version, _ in samples] == [7, 6, 7, 7, 8]


def test_samples_of_a_mixed_pool_name_their_world() -> None:
    async def policy(episode: Any) -> None:
        episode.wrote([1], [2])
        await by_world(episode)

    async def body() -> Counter[str | None]:
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            return Counter([sample.environment async for sample in pool.samples(policy, rows(), group=2, seed=1)])

    assert asyncio.run(body()) == {"dice": 8, "coin": 4}


def test_a_sampler_draws_from_several_worlds_and_is_told() -> None:
    async def body() -> None:
        sampler = TaskSampler(list(rows()), seed=2)
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            async with pool.play(by_world, sampler, seed=1) as stream:
                async for played in stream:
                    if played.assignment.number >= 10:
                        break
        assert sampler.state()["seen"].keys() <= {f'["{row["world"]}", "{row["task"]}"]' for row in rows()}

    asyncio.run(body())


def test_forks_of_several_worlds_are_groups() -> None:
    async def body() -> list[list[Any]]:
        async with MixedPool({"dice": Dice, "coin": Coin}, size=2) as pool:
            return [group async for group in pool.groups(by_world, rows(), group=2, seed=1, forks=True)]

    found = asyncio.run(body())
    assert len(found) == 6 and {each.status.usable for group in found for each in group} == {True}
    assert all(group[1].trajectory.forked_from is not None for group in found)


@pytest.mark.parametrize("stops", [0, 1])
def test_what_had_finished_in_the_other_worlds_is_yielded_before_an_error_of_one(stops: int) -> None:
    async def body() -> None:
        done, fail = asyncio.Semaphore(0), asyncio.Event()

        async def fails(episode: Any) -> None:
            await fail.wait()
            raise KeyError("a mistake of the policy")

        async def ends(episode: Any) -> None:
            await by_world(episode)
            done.release()

        source = [{"world": "coin", "task": "t1"}, *({"world": "dice", "task": "t1"} for _ in range(4))]
        async with MixedPool({"dice": Dice, "coin": Coin}, size=4) as pool:
            async with pool.play({"dice": ends, "coin": fails}, source) as stream:
                played = [await anext(stream) for _ in range(stops)]
                coming = asyncio.ensure_future(anext(stream)) if not stops else None
                for _ in range(4):
                    await done.acquire()
                await pool.pools["dice"].rollout(by_world, ["t1"] * 20)  # meanwhile their ends are answered
                fail.set()
                if coming is not None:
                    played.append(await coming)
                with pytest.raises(PolicyFailed):
                    async for each in stream:
                        played.append(each)
            left = [each.number for each in stream.unfinished]
        assert sorted([each.assignment.number for each in played] + left) == [0, 1, 2, 3, 4]
        assert left == [0]

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize(
    ("worlds", "tasks", "options", "problem"),
    [
        ({}, ["t1"], {}, "at least one world"),
        ({"dice": Dice}, None, {}, "needs tasks"),
        ({"dice": Dice}, [{"world": "dyce", "task": "t1"}], {}, "'dyce'.*one of: dice"),
        ({"dice": Dice}, [{"task": "t1"}], {}, "world None"),
        ({"dice": Dice}, [], {"forks": True}, "forks=True needs groups"),
    ],
)
def test_what_a_mixed_pool_cannot_play_is_refused(worlds: Any, tasks: Any, options: Any, problem: str) -> None:
    async def body() -> None:
        async with MixedPool(worlds) as pool:
            async with pool.play(one_roll, tasks, **options) as stream:
                async for _ in stream:
                    pass

    with pytest.raises(ValueError, match=problem):
        asyncio.run(body())


def test_a_world_without_a_policy_is_named() -> None:
    async def body() -> None:
        async with MixedPool({"dice": Dice, "coin": Coin}) as pool:
            pool.play({"dice": one_roll}, [])

    with pytest.raises(ValueError, match="no policy for coin"):
        asyncio.run(body())
