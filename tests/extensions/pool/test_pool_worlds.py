"""The states of the shipped worlds: equal in process, in worker processes, in Ray actors and over `/ws`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from digested_worlds import TASKS, WORLDS, found, solution_of
from test_ray_pool import output_of

from mcpenv.server.serve import serving
from mcpenv_client.pool import EnvPool


@asynccontextmanager
async def processes(world: str) -> AsyncIterator[EnvPool]:
    async with EnvPool(WORLDS[world], 2, backend="process", workers=2) as pool:
        yield pool


@asynccontextmanager
async def local(world: str) -> AsyncIterator[EnvPool]:
    async with EnvPool(WORLDS[world], 2) as pool:
        yield pool


@asynccontextmanager
async def remote(world: str) -> AsyncIterator[EnvPool]:
    with serving(WORLDS[world]) as url:
        async with EnvPool(url, 2, backend="remote") as pool:
            yield pool


def digests(world: str, kind: Callable[[str], Any]) -> list[list[Any]]:
    async def play() -> list[list[Any]]:
        async with kind(world) as pool:
            return found(await pool.rollout(solution_of(world), TASKS, seed=5))

    return asyncio.run(play())


def alone(world: str) -> list[list[str]]:
    """Return the digests of the states of an environment without a pool."""
    calls, states = solution_of(world).calls, []
    with WORLDS[world]() as env:
        for task in TASKS:
            env.reset(task=task)
            states.append([env.call_tool("state_digest").text])
            for name, arguments in calls[task]:
                env.call_tool(name, arguments)
                states[-1].append(env.call_tool("state_digest").text)
    return states


@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", WORLDS)
def test_the_states_of_a_world_are_equal_in_process_in_workers_and_over_ws(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpenv_client.pool.servers.CHECK_S", 300.0)  # of a loaded machine
    expected = digests(world, local)
    assert [states for states, _, _ in expected] == alone(world)
    assert all(trajectory is not None and reward == 1.0 for _, trajectory, reward in expected)
    assert all(len(set(states)) > 1 for states, _, _ in expected)
    assert digests(world, processes) == expected
    assert digests(world, remote) == expected


@pytest.mark.world
@pytest.mark.timeout(1100)
def test_the_states_of_the_worlds_are_equal_in_ray_actors() -> None:
    assert output_of("ray_worlds_program.py") == {world: digests(world, local) for world in WORLDS}
