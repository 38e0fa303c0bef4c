"""How many sessions a pool has on a server."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from pool_worlds import Dice, five_rolls_async

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.pool import EnvPool, PoolError
from mcpenv_client.pool.servers import read_servers
from mcpenv_client.pool.window import Window


def limits_of(window: Window, episodes: int) -> list[int]:
    """Return the limit after each of some completed episodes."""
    limits: list[int] = []
    for _ in range(episodes):
        window.finished()
        limits.append(window.limit)
    return limits


def test_a_window_begins_with_its_most() -> None:
    assert set(limits_of(Window(32), 500)) == {32}


def test_a_refusal_cuts_the_window_and_success_enlarges_it_one_by_one() -> None:
    window = Window(32)
    window.refused(16)
    assert window.limit == 12
    limits = limits_of(window, 400)
    assert limits[-1] > 16 and all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(limits))
    for _ in range(20):
        window.refused(0)
    assert window.limit == 1


def test_a_server_of_small_capacity_plays_all_episodes() -> None:
    async def play() -> None:
        with serving(Dice, ServerConfig(max_concurrent_envs=2)) as url:
            async with EnvPool(url, 16, backend="remote") as pool:
                played = await pool.rollout(five_rolls_async, [f"t{number}" for number in range(10)], n=6, seed=0)
                backend: Any = pool._backend
                (server,) = backend.servers
                assert server.limit is not None and server.limit <= 2
        assert len(played) == 60 and all(each.status.usable and each.attempts == 1 for each in played)

    asyncio.run(asyncio.wait_for(play(), 120))


class Holds:
    """A policy that plays when it may go on, and counts those that began."""

    def __init__(self) -> None:
        self.began, self.may_go_on = 0, asyncio.Event()

    async def __call__(self, episode: Any) -> Any:
        self.began += 1
        await self.may_go_on.wait()
        return await five_rolls_async(episode)


@pytest.mark.parametrize("paused", [False, True])
def test_episodes_wait_for_room_as_long_as_others_of_the_pool_run(
    paused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        with serving(Dice, ServerConfig(max_concurrent_envs=2)) as url:
            async with EnvPool(url, 6, backend="remote") as pool:
                backend: Any = pool._backend
                backend._servers.wait_s = 0.2
                policy = Holds()
                if paused:
                    pool.pause()
                playing = asyncio.ensure_future(pool.rollout(policy, [f"t{number}" for number in range(6)], seed=0))
                done, _ = await asyncio.wait([playing], timeout=2.0)  # ten times as long as it may wait in vain
                assert not done and policy.began == (0 if paused else 2)
                if paused:
                    pool.resume()
                policy.may_go_on.set()
                assert all(each.status.usable and each.attempts == 1 for each in await playing)

    asyncio.run(asyncio.wait_for(play(), 60))
    said = [each.getMessage() for each in caplog.records if "have room" in each.getMessage()]
    assert said == ["pool: the servers have room for 2 of 6 sessions; others wait"]


def test_room_that_others_have_taken_is_not_waited_for_longer() -> None:
    async def play() -> None:
        with serving(Dice, ServerConfig(max_concurrent_envs=2)) as url:
            async with EnvClient(url) as one, EnvPool(url, 6, backend="remote") as pool:
                await one.reset()
                backend: Any = pool._backend
                backend._servers.wait_s = 0.5
                assert len(await pool.rollout(five_rolls_async, [f"t{number}" for number in range(6)], seed=0)) == 6
                for server in backend.servers:  # its sessions that are not used
                    await asyncio.gather(*(client.close() for client in server.take_idle()))
                async with EnvClient(url, capacity_timeout_s=30.0) as other:
                    await other.reset()
                    with pytest.raises(PoolError, match=r"has had room for 0\.5 s"):
                        await pool.rollout(five_rolls_async, ["t1"], seed=0)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_dns_name_stands_for_a_server_at_each_address() -> None:
    assert ("http://127.0.0.1:8123", 1.0) in read_servers("dns+http://localhost:8123")
    assert read_servers({"dns+http://127.0.0.1:81/env": 2.0}) == [("http://127.0.0.1:81/env", 2.0)]
    with pytest.raises(PoolError, match="names no servers"):
        read_servers(["dns+http://nowhere.invalid:80"])


def test_a_pool_plays_on_the_addresses_of_a_name() -> None:
    async def play() -> None:
        with serving(Dice) as url:
            async with EnvPool("dns+" + url.replace("127.0.0.1", "localhost"), 2, backend="remote") as pool:
                (played,) = await pool.rollout(five_rolls_async, ["t1"])
                assert played.status.usable and played.where == url

    asyncio.run(asyncio.wait_for(play(), 60))
