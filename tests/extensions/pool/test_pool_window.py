"""How many sessions a pool has on a server."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any

import pytest
from pool_worlds import Dice, five_rolls_async

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.pool import EnvPool, PoolError
from mcpenv_client.pool.servers import read_servers
from mcpenv_client.pool.window import Window


def limits_of(window: Window, episodes: int, *, cores: int, work_s: float, think_s: float) -> list[int]:
    """Simulate a server of some cores, which each episode needs for its work, and return the limit after each episode.

    The rest of an episode is the model's time, which needs no core.
    """
    limits: list[int] = []
    events: list[tuple[float, int]] = []
    free = [0.0] * cores
    number = 0

    def begin(now_s: float) -> None:
        nonlocal number
        number += 1
        start = max(heapq.heappop(free), now_s + think_s)
        heapq.heappush(free, start + work_s)
        heapq.heappush(events, (start + work_s, number))

    now_s = 0.0
    while len(limits) < episodes:
        while len(events) < window.limit:
            begin(now_s)
        now_s, _ = heapq.heappop(events)
        window.finished(now_s)
        limits.append(window.limit)
    return limits


def test_a_window_grows_to_its_most_where_episodes_wait_for_a_model() -> None:
    limits = limits_of(Window(64, adaptive=True), 2000, cores=4, work_s=0.001, think_s=1.0)
    assert limits[0] == 8 and limits[-1] == 64


def test_a_window_stays_small_where_the_server_is_busy() -> None:
    limits = limits_of(Window(256, adaptive=True), 5000, cores=2, work_s=0.1, think_s=0.0)
    assert max(limits) <= 12 and limits[-1] >= 8
    knee = limits_of(Window(256, adaptive=True), 5000, cores=2, work_s=0.1, think_s=1.0)  # full with 22 sessions
    assert 18 <= knee[-1] <= 60


def test_a_window_that_does_not_adapt_begins_with_its_most() -> None:
    assert set(limits_of(Window(32), 500, cores=1, work_s=0.1, think_s=0.0)) == {32}


def test_a_refusal_cuts_the_window_and_success_enlarges_it_one_by_one() -> None:
    window = Window(32)
    window.refused(16)
    assert window.limit == 12
    limits = limits_of(window, 400, cores=32, work_s=0.1, think_s=0.0)
    assert limits[-1] > 16 and all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(limits))
    for _ in range(20):
        window.refused(0)
    assert window.limit == 1


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_server_of_small_capacity_plays_all_episodes(adaptive: bool) -> None:
    async def play() -> None:
        with serving(Dice, ServerConfig(max_concurrent_envs=2)) as url:
            async with EnvPool(url, 16, backend="remote", adaptive=adaptive) as pool:
                played = await pool.rollout(five_rolls_async, [f"t{number}" for number in range(10)], n=6, seed=0)
                backend: Any = pool._backend
                (server,) = backend.servers
                assert server.limit is not None and server.limit <= 2
        assert len(played) == 60 and all(each.status.usable and each.attempts == 1 for each in played)

    asyncio.run(asyncio.wait_for(play(), 120))


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
