"""The time limit of an episode, and the end of a play, while a call runs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from pool_worlds import Dice, Endless, hangs_past_its_limit, waits_in_the_first
from test_env_pool import run

from mcpenv.server.serve import serving
from mcpenv_client import StatusCode
from mcpenv_client.pool import EnvPool, Limits
from mcpenv_client.pool.playing import TIMEOUT

BACKENDS: Any = ("local", "process", "remote")


@contextlib.asynccontextmanager
async def pool_of(world: Any, backend: Any) -> Any:
    options: dict[str, Any] = {"workers": 1} if backend == "process" else {}
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(serving(world)) if backend == "remote" else world
        async with EnvPool(target, 2, backend=backend, **options) as pool:
            yield pool


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_episode_ends_at_its_limit_while_an_async_tool_runs(backend: Any) -> None:
    async def play() -> None:
        async with pool_of(Endless, backend) as pool:
            late, quick = await pool.rollout(waits_in_the_first, n=2, limits=Limits(episode_timeout_s=1.0))
            again = await pool.rollout(waits_in_the_first, n=2, limits=Limits(episode_timeout_s=1.0))
        for each in (late, again[0]):
            assert (each.status.code, each.reward, each.attempts) == (StatusCode.TRUNCATED, None, 1)
        assert quick.status.code is again[1].status.code is StatusCode.COMPLETED

    run(play)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_play_is_left_while_an_async_tool_runs(backend: Any) -> None:
    async def play() -> None:
        async with pool_of(Endless, backend) as pool:
            async with pool.play(waits_in_the_first, n=6) as stream:
                async for played in stream:
                    if played.assignment.number == 3:
                        break
            assert 0 in [each.number for each in stream.unfinished]

    run(play)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_blocking_policy_that_returns_after_the_limit_has_a_truncated_episode(backend: Any) -> None:
    async def play() -> None:
        async with pool_of(Dice, backend) as pool:
            (played,) = await pool.rollout(hangs_past_its_limit, ["t1"], limits=Limits(episode_timeout_s=0.5))
        assert played.status.code is StatusCode.TRUNCATED and played.attempts == 1
        assert played.trajectory is not None and played.trajectory.reason in (TIMEOUT, "timeout")

    run(play)
