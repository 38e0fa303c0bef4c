"""Pools of servers: ready before they are wanted, alive when they are handed over, as new after each use."""

from __future__ import annotations

import asyncio

import pytest
from provider_bench import WORLDS, in_loop

from mcpenv_client import EnvClient, SessionLost
from mcpenv_client.providers.local import LocalProvider
from mcpenv_client.providers.pool import ProviderPool
from mcpenv_client.providers.provider import Instance

pytestmark = pytest.mark.slow


def pool_of(environment: str, size: int = 1) -> ProviderPool:
    return ProviderPool(LocalProvider(f"{WORLDS}:{environment}"), size)


async def use(pool: ProviderPool, by: int = 5) -> str:
    """Use an instance for one episode, and return its name."""
    async with pool.instance() as instance:
        async with EnvClient(instance.url, headers=instance.headers) as env:
            await env.reset(seed=1)
            await env.call_tool("add", {"by": by})
        return instance.name


@in_loop
async def test_sound_instances_are_used_again() -> None:
    async with pool_of("Sound") as pool:
        assert pool.pristine is not None
        assert await use(pool) == await use(pool)
    assert pool.replaced == []


@in_loop
async def test_an_instance_whose_state_differs_is_reported_and_replaced() -> None:
    async with pool_of("Leaking") as pool:
        assert pool.pristine is not None
        first = await use(pool)
        second = await use(pool, by=0)
        assert second != first
        assert await use(pool) == second, "one that left nothing is as new"
        assert [each.name for each in pool.replaced][:1] == [first]
        assert f"and {pool.pristine[:12]} in a new one" in pool.replaced[0].reason


@in_loop
async def test_instances_that_prove_nothing_are_used_once() -> None:
    async with pool_of("Restless") as pool:
        assert pool.pristine is None
        first = await use(pool)
        assert await use(pool) != first
        assert "differs from episode to episode" in pool.replaced[0].reason


@in_loop
async def test_an_instance_that_died_is_not_handed_over() -> None:
    async with pool_of("Sound") as pool:
        async with pool.instance() as first:
            async with EnvClient(first.url, headers=first.headers) as env:
                await env.reset()
                with pytest.raises(SessionLost):
                    await env.call_tool("leave")
        async with pool.instance() as second:
            assert second.name != first.name and await second.is_alive()
        assert [each.name for each in pool.replaced] == [first.name]


@in_loop
async def test_instances_are_used_by_one_block_at_a_time_and_end_with_the_pool() -> None:
    both = asyncio.Barrier(2)
    seen: list[Instance] = []

    async def hold(pool: ProviderPool) -> None:
        async with pool.instance() as instance:
            seen.append(instance)
            await both.wait()

    async with pool_of("Sound", 2) as pool:
        await asyncio.wait_for(asyncio.gather(hold(pool), hold(pool)), 60)
        async with EnvClient.from_provider(pool) as env:
            assert env.base_url in {instance.url for instance in seen}
    assert len({instance.name for instance in seen}) == 2
    assert not any([await instance.is_running() for instance in seen])


def test_a_pool_of_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="size is 0; it must be 1 or more"):
        pool_of("Sound", 0)
