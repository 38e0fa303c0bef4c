"""Pools that play from steps of recorded episodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_worlds import Dice, play
from snapshot_worlds import Plain

from mcpenv import MCPEnvironment, Reward
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode, Recorder, read_episodes
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.pool import EnvPool, Played, PoolError, Start, TaskSampler
from mcpenv_client.types.records import Fork
from mcpenv_client.types.tasks import Task


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> RecordedEpisode:
    folder = tmp_path_factory.mktemp("record")
    with Recorder(folder) as recorder, Dice() as env:
        recorder.attach(env)
        play(env, 3)
    return next(iter(read_episodes(folder)))


async def roll_by_sample(episode: Any) -> Any:
    """Roll a number of dice that differs by the sample."""
    await episode.call_tool("roll", {"times": episode.assignment.sample + 1})
    return episode.prompt


def roll_blocking(episode: Any) -> Any:
    episode.call_tool("roll", {"times": episode.assignment.sample + 1})
    return episode.prompt


@contextmanager
def pool_of(kind: str) -> Iterator[EnvPool]:
    if kind == "remote":
        with serving(Dice, ServerConfig(max_concurrent_envs=8)) as url:
            yield EnvPool([url], 4, backend="remote")
    elif kind == "process":
        yield EnvPool(Dice, 2, backend="process", workers=1)
    else:
        yield EnvPool(Dice, 4)


def rolled(pool: EnvPool, policy: Any, starts: list[Start], **options: Any) -> list[Played]:
    async def body() -> list[Played]:
        async with pool:
            return await pool.rollout(policy, starts=starts, **options)

    return asyncio.run(body())


@pytest.mark.parametrize("kind", ["local", "remote", pytest.param("process", marks=pytest.mark.process)])
@pytest.mark.parametrize("policy", [roll_by_sample, roll_blocking], ids=["async", "blocking"])
def test_groups_continue_steps_of_a_record(kind: str, policy: Any, parent: RecordedEpisode) -> None:
    with pool_of(kind) as pool:
        played = rolled(pool, policy, [Start(parent, 2), Start(parent, 7)], group=3)
    assert [(each.assignment.group, each.assignment.sample) for each in played] == [
        (g, s) for g in (0, 1) for s in range(3)
    ]
    for each, step in zip(played, [2, 2, 2, 7, 7, 7], strict=True):
        trajectory = each.trajectory
        assert trajectory is not None and trajectory.forked_from == Fork(parent.id, step)
        assert len(trajectory.steps) == step + 1 and each.value == "Reach 30 with dice of 8 sides."
        assert each.reward == trajectory.total_reward
    same = [each.trajectory.steps[-1].outcome.result.text for each in played if each.trajectory]  # type: ignore[union-attr]
    assert same[:3] == same[3:] and len({*same}) == 3  # nothing between the two steps rolls dice


def test_a_start_that_does_not_come_out_the_same_ends_the_play(parent: RecordedEpisode) -> None:
    class Loaded(Dice):
        def __init__(self) -> None:
            super().__init__(loaded=True)

    with pytest.raises(PoolError) as refused:
        rolled(EnvPool(Loaded, 2), roll_by_sample, [Start(parent, 8)])
    assert "step 8 differs" in str(refused.value) or isinstance(refused.value.__cause__, InvalidMessage)


def test_starts_are_no_tasks_and_take_no_seed(parent: RecordedEpisode) -> None:
    for options in ({"tasks": ["a"]}, {"seed": 3}):
        with pytest.raises(ValueError, match="leave tasks and seed out"):
            EnvPool(Dice, 1).play(roll_by_sample, starts=[Start(parent, 1)], **options)


class Counted(Plain):
    """Counts the calls of its tool in all instances."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def tick() -> int:
            """Count."""
            Counted.calls += 1
            return Counted.calls * 0


def test_with_forks_the_recorded_calls_run_once_for_a_group() -> None:
    with Counted() as env:
        env.reset(seed=1)
        for _ in range(5):
            env.call_tool("tick")
        parent = env.trajectory
    assert parent is not None

    async def policy(episode: Any) -> None:
        await episode.call_tool("add", {"by": episode.assignment.sample})

    for forks, calls in ((True, 4), (False, 32)):
        Counted.calls = 0
        played = rolled(EnvPool(Counted, 2), policy, [Start(parent, 4)], group=8, forks=forks)
        assert Counted.calls == calls
        assert {each.trajectory.forked_from for each in played if each.trajectory} == {Fork(parent.episode_id, 4)}


class Parts(MCPEnvironment):
    """Rewards each step with a part."""

    def __init__(self) -> None:
        @self.tool
        def go() -> None:
            """Go."""

    def score(self, call: Any, outcome: Any) -> Reward:
        return Reward(1.0, {"steps": 1.0})


def test_rewards_of_the_prefix_count_once_and_turns_have_the_steps_of_the_branch() -> None:
    with Parts() as env:
        env.reset()
        for _ in range(3):
            env.call_tool("go")
        parent = env.trajectory
    assert parent is not None

    async def policy(episode: Any) -> Any:
        episode.wrote([1, 2, 3], [4])
        await episode.call_tool("go")

    async def body() -> tuple[list[Any], list[Played]]:
        async with EnvPool(Parts, 2) as pool:
            made = [each async for each in pool.samples(policy, starts=[Start(parent, 2)], group=2)]
            return made, await pool.rollout(policy, starts=[Start(parent, 2)], trajectories=False)

    made, (alone,) = asyncio.run(body())
    assert [each.spans[0].steps for each in made] == [(3,), (3,)] and [each.spans[0].reward for each in made] == [
        1.0
    ] * 2
    assert [each.reward for each in made] == [3.0, 3.0] and made[0].parts == {"steps": 3.0} == alone.parts
    assert made[0].advantage == 0.0 and alone.reward == 3.0


def test_a_sampler_draws_steps_of_records_each_with_a_rate_of_its_own() -> None:
    with Parts() as env:
        env.reset()
        for _ in range(3):
            env.call_tool("go")
        parent = env.trajectory
    assert parent is not None
    early, late = Start(parent, 1), Start(parent, 2)
    sampler = TaskSampler([early, late], solved=3.0, seed=1)

    async def policy(episode: Any) -> None:
        await episode.call_tool("go")

    async def body() -> None:
        async with EnvPool(Parts, 2) as pool:
            async with pool.play(policy, sampler, trajectories=False) as stream:
                for _ in range(40):
                    await anext(stream)
            async with pool.play(policy, starts=itertools.repeat(late)) as stream:  # endless, too
                assert (await anext(stream)).reward == 3.0

    asyncio.run(body())
    assert sampler.rate(late) > 0.85 and sampler.rate(early) < 0.15
    assert sampler.rate(Start(parent.episode_id, 2)) == sampler.rate(late)  # the same step, in a server's record


def test_an_evaluation_of_whole_episodes_says_nothing_of_their_later_steps() -> None:
    with Dice() as env:
        env.reset(seed=1)
        env.call_tool("roll")
        parent = env.trajectory
    assert parent is not None
    task = Task(id="alone", level=2)
    start = Start(replace(parent, task=task), 1)
    summary = {
        "tasks": [{"name": "alone", "scored": 4, "passed": 4}],
        "labels": [{"kind": "level", "label": "2", "pass_rate": {"value": 1.0}}],
    }
    sampler = TaskSampler([task, start])
    assert sampler.begin_from(summary) == 1
    assert (sampler.rate(task), sampler.rate(start)) == (1.0, 0.5)
    levels = TaskSampler([task, start, Task(id="other", level=1)], by="level", seed=1)
    drawn = [levels.draw() for _ in range(400)]
    assert 160 < sum(isinstance(each, Task) and each.id == "other" for each in drawn) < 240  # level 2 has the other two


def test_a_mapping_of_worlds_takes_no_steps_of_records(parent: RecordedEpisode) -> None:
    with pytest.raises(ValueError, match="a mapping of worlds takes tasks"):
        TaskSampler({"dice": [Start(parent, 1)]})


def test_a_chat_begins_with_the_calls_of_the_prefix(parent: RecordedEpisode) -> None:
    async def policy(episode: Any) -> Any:
        chat = await episode.chat()
        before = [*chat.messages]
        call = {"id": "c", "type": "function", "function": {"name": "roll", "arguments": "{}"}}
        await chat.act({"role": "assistant", "content": "", "tool_calls": [call]})
        return before, chat.turns

    (played,) = rolled(EnvPool(Dice, 1), policy, [Start(parent, 2)])
    messages, turns = played.value
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant", "tool"] and turns == 1
    assert messages[0]["content"] == "Reach 30 with dice of 8 sides."
    assert messages[1]["tool_calls"][0]["function"]["name"] == "say"
    assert messages[2] == {"role": "tool", "tool_call_id": "call_0001", "content": messages[2]["content"]}
    assert "HELLO" in messages[2]["content"]
    assert played.trajectory is not None and len(played.trajectory.steps) == 3


def test_a_server_s_own_record_is_named_by_the_id(tmp_path: Path) -> None:
    with serving(Dice, ServerConfig(max_concurrent_envs=4, record=tmp_path)) as url:

        async def body() -> list[Played]:
            async with EnvPool([url], 2, backend="remote") as pool:
                first = await pool.rollout(roll_by_sample, n=1, seed=5)
                assert first[0].trajectory is not None
                return await pool.rollout(roll_by_sample, starts=[Start(first[0].trajectory.episode_id, 1)], group=2)

        played = asyncio.run(body())
    assert [len(each.trajectory.steps) for each in played if each.trajectory] == [2, 2]
