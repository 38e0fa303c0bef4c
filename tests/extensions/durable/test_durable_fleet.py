"""Episodes of a fleet whose servers are killed: none is lost, none is played twice, and all have the same digests."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from durable_fleet import Fleet
from durable_worlds import Walk

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient, SessionLost
from mcpenv_client.fingerprint import digest_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

AT_ONCE = 10


async def play(urls: list[str], seed: int) -> None:
    """One episode of 20 to 60 steps."""
    chance = random.Random(seed)
    async with EnvClient(urls, max_resumes=60) as env:
        await env.reset(seed=seed, episode_id=f"episode-{seed}")
        for _ in range(chance.randint(20, 60)):
            if chance.random() < 0.1:
                await env.call_tool("linger", {"seconds": 0.05})
            elif chance.random() < 0.1:
                await env.call_tool("fail")
            else:
                await env.call_tool("walk", {"by": chance.randint(1, 9)})
        result = await env.call_tool("arrive")
        assert result.done


async def play_all(urls: list[str], seeds: range) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> None:
        async with room:
            await play(urls[seed % len(urls) :] + urls[: seed % len(urls)], seed)

    await asyncio.gather(*map(one, seeds))


def digests(record: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for episode in read_episodes(record):
        assert episode.id not in found, "an episode was recorded twice"
        found[episode.id] = digest_of(episode.trajectory)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("writes", ["strict", "behind"])
def test_servers_are_killed_and_nothing_is_lost(tmp_path: Path, writes: str) -> None:
    episodes = 0
    with Fleet(tmp_path, "Walk", f"{tmp_path}/store?lease_s=3&writes={writes}") as fleet, fleet.killed_in_turn(seed=1):
        while fleet.kills < 2:
            asyncio.run(play_all(fleet.urls, range(episodes, episodes + AT_ONCE)))
            episodes += AT_ONCE
    with serving(Walk, ServerConfig(record=tmp_path / "undisturbed"), max_concurrent_envs=64) as url:
        asyncio.run(play_all([url], range(episodes)))
    assert digests(fleet.record) == digests(tmp_path / "undisturbed")


def test_sigterm_moves_a_hundred_episodes_without_waiting_for_their_ends(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        clients = [EnvClient(fleet.urls) for _ in range(100)]
        for number, client in enumerate(clients):
            await client.reset(seed=number)
            await client.call_tool("walk")
        await asyncio.to_thread(fleet.signal, 0, signal.SIGTERM)
        states = await asyncio.gather(*(client.state() for client in clients))
        assert [state.step_count for state in states] == [1] * 100
        assert {client.base_url for client in clients} == {fleet.urls[1]}
        await asyncio.gather(*(client.close() for client in clients))

    with Fleet(tmp_path, "Walk", f"{tmp_path}/store", servers=2) as fleet:
        asyncio.run(run(fleet))
        assert "this server has ended" in fleet.log(0)
        assert "draining" not in fleet.log(0)


def test_episodes_of_a_killed_worker_go_on_in_the_others(tmp_path: Path) -> None:
    async def one(url: str, number: int, half: asyncio.Barrier) -> None:
        async with EnvClient(url, resume=True, max_resumes=60) as env:
            await env.reset(seed=number, episode_id=f"episode-{number}")
            for step in range(6):
                if step == 3:
                    await half.wait()
                await env.call_tool("walk", {"by": number})
            assert (await env.call_tool("arrive")).done

    async def run(url: str, kill: Callable[[], None] | None) -> None:
        half = asyncio.Barrier(9)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(one(url, number, half))
            await half.wait()
            if kill is not None:
                kill()

    workers = ("--workers", "2")
    with Fleet(tmp_path, "Walk", f"{tmp_path}/store?lease_s=2", servers=1, arguments=workers) as fleet:
        asyncio.run(run(fleet.urls[0], lambda: os.kill(min(fleet.workers()), signal.SIGKILL)))
        assert "with 4 sessions" in fleet.log(0)
    with serving(Walk, ServerConfig(record=tmp_path / "undisturbed"), max_concurrent_envs=64) as url:
        asyncio.run(run(url, None))
    assert digests(fleet.record) == digests(tmp_path / "undisturbed")


def test_a_stopped_owner_is_refused_when_it_goes_on(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> None:
        one, two = EnvClient([fleet.urls[0]], resume=True, max_resumes=0), EnvClient(fleet.urls[::-1], max_resumes=60)
        async with one, two:
            await one.reset(seed=1)
            await one.call_tool("walk")
            fleet.signal(0, signal.SIGSTOP)
            # The same client on another machine: its network to the stopped server is gone.
            two._session._credential = one._session._credential
            assert two._session.connection is not None
            two._session.connection._abort()
            assert (await two.state()).step_count == 1
            await two.call_tool("walk", request_id="a-request-of-this-client")  # both count theirs from 1
            fleet.signal(0, signal.SIGCONT)
            with pytest.raises(SessionLost, match="another server continues this episode"):
                await one.call_tool("walk")
            assert (await two.state()).step_count == 2

    with Fleet(tmp_path, "Walk", f"{tmp_path}/store?lease_s=2", servers=2) as fleet:
        asyncio.run(run(fleet))


def test_calls_that_act_outside_never_run_twice(tmp_path: Path) -> None:
    async def run(fleet: Fleet) -> list[bool]:
        failed: list[bool] = []
        async with EnvClient(fleet.urls, max_resumes=60) as env:
            await env.reset()
            number = 0
            while fleet.kills < 2 or not any(failed):
                result = await env.call_tool("count", {"name": f"step-{number}", "seconds": 0.2})
                failed.append("is not repeated" in str(result.observation.error))
                number += 1
            assert (await env.state()).step_count == number
        return failed

    with Fleet(tmp_path, "Counted", f"{tmp_path}/store?lease_s=2", servers=2) as fleet, fleet.killed_in_turn(seed=2):
        failed = asyncio.run(run(fleet))
    counted = Counter((tmp_path / "counted").read_text().split())
    assert set(counted.values()) == {1}
    answered = {f"step-{number}" for number, unknown in enumerate(failed) if not unknown}
    assert answered <= set(counted)
