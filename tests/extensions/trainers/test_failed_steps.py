"""Steps and resets that fail by no fault of the agent: in adapters, masked."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from served import served
from trainer_worlds import FullDisk, Late, ShakyDisk

from mcpenv.server.app import create_app
from mcpenv_client import Conversation, EnvClient, MCPToolClient
from mcpenv_client.trainers.hosted import HostedEpisode
from mcpenv_client.trainers.trl import McpenvSpec, masked

pytestmark = pytest.mark.timeout(300)

ROW = {"split": "train", "index": 0}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make room on the disk after each test."""
    monkeypatch.setattr(FullDisk, "full", 0)
    monkeypatch.setattr(Late, "failing", {})
    monkeypatch.setattr(ShakyDisk, "calls", 0)


def seed_of(seed: int) -> int:
    """Return the seed of the first episode of an environment of Gymnasium with a seed."""
    from gymnasium.utils.seeding import np_random

    return int(np_random(seed)[0].integers(2**31))


@pytest.mark.parametrize("mask", [True, False])
def test_a_conversation_ends_with_the_status_of_the_step(mask: bool) -> None:
    async def play() -> tuple[Any, ...]:
        with served(create_app(FullDisk)) as address:
            async with EnvClient(address.removesuffix("/mcp")) as env:
                async with Conversation(env, mask_failed_steps=mask) as chat:
                    await chat.begin(ROW)
                    call = {"type": "function", "function": {"name": "save", "arguments": "{}"}}
                    turn = await chat.act({"tool_calls": [call]})
                    ending = await chat.end()
                    FullDisk.full = 0
                    await chat.begin(ROW)
                    await chat.act({"tool_calls": [call]})
                    return turn.done, ending.reward, ending.status.code.value, (await chat.end()).reward

    FullDisk.full = 1
    assert asyncio.run(play()) == ((True, None, "env_error", 1.0) if mask else (False, 0.0, "completed", 1.0))


@pytest.mark.parametrize("mask", [True, False])
def test_an_agent_of_a_librarys_own_plays_and_the_record_has_the_failed_step(mask: bool) -> None:
    async def play() -> tuple[Any, ...]:
        with served(create_app(FullDisk)) as address:
            hosted = HostedEpisode(address.removesuffix("/mcp"), mask_failed_steps=mask)
            await hosted.begin(ROW)
            async with MCPToolClient(hosted.mcp_url) as agent:
                await agent.call_tool("save", raise_on_error=False)
            ending = await hosted.end()
            await hosted.close()
            return ending.reward, ending.status.code.value, ending.status.retryable

    FullDisk.full = 1
    assert asyncio.run(play()) == ((None, "env_error", True) if mask else (0.0, "completed", False))


@pytest.mark.parametrize("mask", [True, False])
def test_trl_gets_no_reward_for_it_also_not_from_functions_of_a_users_own(mask: bool) -> None:
    spec = McpenvSpec(FullDisk, mask_failed_steps=mask)
    episodes: list[Any] = [spec.environment_factory() for _ in range(2)]
    FullDisk.full = 1
    for episode in episodes:
        episode.reset(**spec.train_dataset[0])
        episode.save()
    given = {"environments": episodes, "completions": ["a", "bb"]}

    def length(completions: list[str], **columns: Any) -> list[float | None]:
        return [float(len(text)) for text in completions]

    async def late(completions: list[str], **columns: Any) -> list[float | None]:
        return length(completions)

    wanted = [None, 2.0] if mask else [1.0, 2.0]
    assert masked(length).__name__ == "length" and masked(length)(**given) == wanted
    assert [episode.get_reward() for episode in episodes] == ([None, 1.0] if mask else [0.0, 1.0])
    assert asyncio.run(masked(late)(**given)) == wanted


def test_masked_reads_the_statuses_of_rollouts_and_refuses_other_trainers() -> None:
    def one(completions: list[str], **columns: Any) -> list[float | None]:
        return [1.0] * len(completions)

    statuses = ["completed", "judge_error", "truncated", "agent_error"]
    assert masked(one)(completions=["."] * 4, episode_status=statuses) == [1.0, None, 1.0, 1.0]
    with pytest.raises(ValueError, match="masked\\(\\) is for episodes of"):
        masked(one)(completions=["."])


@pytest.mark.world
@pytest.mark.parametrize("mask", [True, False])
def test_gymnasiums_reward_is_nan(mask: bool) -> None:
    from mcpenv_client.trainers.gymnasium import McpenvEnv

    env = McpenvEnv(FullDisk, actions=[("save", {})], split="train", mask_failed_steps=mask)
    FullDisk.full = 1
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(0)
    assert (math.isnan(reward), terminated, truncated) == (mask, False, mask)
    assert not mask or (info["status"], info["reason"]) == ("env_error", "failed_step")
    env.close()


@pytest.mark.world
def test_a_reset_that_fails_costs_no_other_environment_of_a_vector_its_episode() -> None:
    import numpy as np

    from mcpenv_client.trainers.gymnasium_vector import McpenvVectorEnv

    vector = McpenvVectorEnv(Late, 3, actions=[("wave", {})], retries=1)
    Late.failing.update({seed_of(5): 1, seed_of(6): 2})
    vector.reset(seed=5)
    _, rewards, terminated, truncated, infos = vector.step(np.array([0, 0, 0]))
    assert rewards[[0, 2]].tolist() == [1.0, 1.0] and math.isnan(rewards[1])
    assert (terminated.tolist(), truncated.tolist()) == ([True, False, True], [False, True, False])
    assert infos["status"].tolist() == ["completed", "env_error", "completed"]
    vector.step(np.array([0, 0, 0]))  # begins the next episodes
    assert vector.step(np.array([0, 0, 0]))[1].tolist() == [1.0, 1.0, 1.0]
    vector.close()


@pytest.mark.world
def test_where_failures_shall_raise_a_reset_that_fails_each_time_does() -> None:
    import gymnasium

    from mcpenv_client.trainers.gymnasium import EpisodeFailed, McpenvEnv

    env = McpenvEnv(Late, actions=[("wave", {})], retries=1, on_failure="raise")
    Late.failing[seed_of(3)] = 2
    with pytest.raises(EpisodeFailed, match="env_error"):
        env.reset(seed=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=3)
    assert env.step(0)[1] == 1.0
    env.close()


def played(library: str, program: str, failing: Iterable[int], *arguments: str) -> Any:
    """Return what a program of a library prints, at a server whose disk is full for these calls."""
    python = os.environ.get(f"MCPENV_{library}")
    assert python, f"MCPENV_{library} names no Python that has the library and mcpenv-client; .ci/run makes one"
    ShakyDisk.failing = {*failing}
    with served(create_app(ShakyDisk)) as disk:
        command = [python, str(Path(__file__).with_name(program)), disk.removesuffix("/mcp"), *arguments]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.world
@pytest.mark.parametrize("mask", [True, False])
def test_trl_learns_nothing_from_such_an_episode(mask: bool) -> None:
    found = played("TRL", "trl_failed_step_program.py", {1, 4}, str(mask))
    for by in ("spec", "rollouts"):
        rewards, statuses, advantages = found[by]
        unlucky = rewards.index(None if mask else 0.0)  # of the three that save, the first that came to the disk
        assert unlucky < 3 and rewards[3] == 0.0
        assert statuses[unlucky] == ("env_error" if mask else "completed") and statuses.count("completed") == 4 - mask
        assert [rewards[at] for at in range(3) if at != unlucky] == [1.0, 1.0]
        lucky = [advantages[at] for at in range(3) if at != unlucky]
        assert lucky[0] == lucky[1] > 0.1 and advantages[3] < -0.1
        assert advantages[unlucky] == 0.0 if mask else advantages[unlucky] < -0.1


@pytest.mark.world
def test_tinker_cookbook_plays_such_an_episode_again_or_drops_its_group() -> None:
    again, kept, dropped = played("TINKER", "tinker_failed_step_program.py", {1, 4, 6})
    assert again == [1.0, 1.0] and sorted(kept) == [0.0, 1.0]
    assert dropped == "the episode has no reward, its status is env_error: failed_step"
