"""The blocking form of a pool: its plays, groups and samples as iterators, on three backends."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from pool_worlds import Dice
from test_env_pool import TASKS
from test_pool_samples import two_rolls

from mcpenv.server.serve import serving
from mcpenv_client.pool import EnvPool, MixedPool, PoolError


@pytest.mark.parametrize("backend", ["local", "process", "remote"])
def test_episodes_groups_and_samples_are_iterated_without_await(backend: Any) -> None:
    with ExitStack() as stack:
        target: Any = stack.enter_context(serving(Dice)) if backend == "remote" else Dice
        pool = stack.enter_context(EnvPool(target, 4, backend=backend).sync())
        pool.resume(policy_version=7)
        played = [each.assignment.number for each in pool.play(two_rolls, TASKS[:4], seed=3)]
        assert sorted(played) == [0, 1, 2, 3]
        groups = [*pool.groups(two_rolls, TASKS[:2], group=2, seed=3)]
        assert [len({each.assignment.group for each in group}) for group in groups] == [1, 1]
        samples = [*pool.samples(two_rolls, TASKS[:2], group=2, seed=3)]
        assert [sum(sample.mask) for sample in samples] == [6] * 4
        assert {sample.policy_version for sample in samples} == {4}  # the policy's own


def test_a_pool_of_several_worlds_has_a_blocking_form() -> None:
    rows = [{"world": world, "task": "t1"} for world in ("one", "other", "one")]
    with MixedPool({"one": Dice, "other": EnvPool(Dice, 2)}).sync() as pool:
        played = pool.rollout(two_rolls, rows, group=2, seed=3)
        assert [each.assignment.number for each in played] == [*range(6)]
        samples = [*pool.samples({"one": two_rolls, "other": two_rolls}, rows, group=2, seed=3)]
        assert [sum(sample.mask) for sample in samples] == [6] * 6
        pool.close()  # and once more at the end


def test_a_play_that_is_left_early_hands_back_what_is_unfinished() -> None:
    with EnvPool(Dice, 2).sync() as pool:
        with pool.play(two_rolls, TASKS[:4]) as stream:
            first = next(stream)
        assert first.assignment not in stream.unfinished and 1 <= len(stream.unfinished) <= 3
        left = {each.assignment.number for each in pool.play(two_rolls, [], unfinished=stream.unfinished)}
        assert left == {each.number for each in stream.unfinished}
        assert [*stream] == []


def test_errors_of_a_play_are_raised_where_it_is_iterated() -> None:
    def fails() -> Any:
        yield TASKS[0]
        raise OSError("no more")

    with EnvPool(Dice, 1).sync() as pool, pytest.raises(PoolError, match="the source of tasks failed: OSError"):
        for played in pool.play(two_rolls, fails()):
            assert played.status.usable


def test_ctrl_c_in_a_wait_ends_the_play() -> None:
    waits = threading.Event()

    async def policy(episode: Any) -> None:
        waits.set()
        await episode.call_tool("hang", {"seconds": 60})

    def interrupt() -> None:
        assert waits.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with EnvPool(Dice, 1).sync() as pool:
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt), pool.play(policy, TASKS[:2]) as stream:
                next(stream)
            thread.join()
            assert [each.number for each in stream.unfinished] == [0]
            assert len([*pool.play(two_rolls, TASKS[:1])]) == 1
    finally:
        signal.signal(signal.SIGINT, before)
