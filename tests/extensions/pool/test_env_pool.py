"""Pools of environments: in this process, in worker processes, and on servers."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pool_worlds import (
    Calls,
    Dice,
    Once,
    OnceAsync,
    calls,
    five_rolls,
    five_rolls_async,
    one_chat,
    wrong,
    wrong_at_three,
)

from mcpenv.server import uvicorn_server
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import InvalidMessage, StatusCode
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Limits, Played, PolicyFailed, PoolError, TaskSampler
from mcpenv_client.pool.servers import Servers
from mcpenv_client.rows import Rows
from mcpenv_client.types.tasks import Task

TASKS = [f"t{number}" for number in range(6)]


@asynccontextmanager
async def local() -> AsyncIterator[EnvPool]:
    async with EnvPool(Dice, 4) as pool:
        yield pool


@asynccontextmanager
async def processes() -> AsyncIterator[EnvPool]:
    async with EnvPool(Dice, 4, backend="process", workers=2) as pool:
        yield pool


@asynccontextmanager
async def remote() -> AsyncIterator[EnvPool]:
    with serving(Dice) as one, serving(Dice) as other:
        async with EnvPool([one, other], 4, backend="remote") as pool:
            yield pool


KINDS: list[Callable[[], Any]] = [local, processes, remote]


def run(body: Any, *arguments: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body(*arguments), 120))


def digests(played: list[Played]) -> list[str]:
    return [digest_of(each.trajectory) for each in played if each.trajectory is not None]


@pytest.mark.parametrize("policy", [five_rolls, five_rolls_async])
def test_the_same_seeds_give_the_same_trajectories_whichever_the_backend(policy: Any) -> None:
    async def play(kind: Any) -> tuple[list[str], list[Any]]:
        async with kind() as pool:
            played = await pool.rollout(policy, TASKS, n=2, group=3, seed=5)
        assert [each.assignment.number for each in played] == list(range(36))
        assert all(each.status.code is StatusCode.COMPLETED and each.attempts == 1 for each in played)
        return digests(played), [(each.value, each.reward) for each in played]

    results = [run(play, kind) for kind in KINDS]
    assert results[0] == results[1] == results[2]
    hashes, values = results[0]
    assert len(hashes) == 36 and len(set(hashes)) == 12
    for first in range(0, 36, 3):
        assert len(set(hashes[first : first + 3])) == 1  # a group has one task and one seed
    assert all(reward in (0.625, 1.625) for _, reward in values)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_all_environments_have_the_same_results(kind: Any) -> None:
    async def steps() -> None:
        async with kind() as pool:
            begun = await pool.reset_all(["t1", None, "t3", None], seeds=[1, 2, 3, 4])
            assert [each.prompt for each in begun] == ["Reach 1.", "", "Reach 3.", ""]
            first = await pool.step_all([calls("roll", times=3)] * 4)
            again = await pool.step_all([None, calls("roll"), None, None])
            assert [each is None for each in again] == [True, False, True, True]
            await pool.reset_all(seeds=[1, 9, 3, 9], which=[True, False, True, False])
            second = await pool.step_all([calls("roll", times=3), None, calls("roll", times=3), None])
            assert [each.text for each in second if each] == [first[0].text, first[2].text]
            assert all(each.reward == 0.125 and not each.done for each in first)
            with pytest.raises(ValueError, match="3 actions; the pool has 4"):
                await pool.step_all([None] * 3)

    run(steps)


def test_a_chat_is_ended_by_the_pool_with_its_limit() -> None:
    async def play(kind: Any) -> None:
        async with kind() as pool:
            (played,) = await pool.rollout(one_chat, ["t1"])
        assert played.value == 2 and played.trajectory.reason == "max_turns" and played.reward in (0.25, 1.25)

    for kind in KINDS:
        run(play, kind)


def test_a_worker_that_dies_is_replaced_and_its_episode_begun_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2, backend="process", workers=2) as pool:
            expected = digests(await pool.rollout(five_rolls, TASKS, n=5, seed=0))
            policy = Once(tmp_path / "died", "die", {}, 7)
            played = await pool.rollout(policy, TASKS, n=5, seed=0)
            assert digests(played) == expected
            assert [each.assignment.number for each in played if each.attempts > 1] == [7]
            assert (tmp_path / "died").exists()
            (lost,) = await pool.rollout(Calls("die"), ["t1"], retries=1)
            assert (lost.status.code, lost.attempts, lost.reward) == (StatusCode.TRANSPORT_LOST, 2, None)
            assert lost.error is not None and "exit code -9" in lost.error

    run(play)


def test_a_worker_that_hangs_is_killed_at_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv_client.pool.places.GRACE_S", 0.5)

    async def play() -> None:
        async with EnvPool(Dice, 1, backend="process", workers=1) as pool:
            policy = Once(tmp_path / "hung", "hang", {"seconds": 3600}, 1)
            began = time.monotonic()
            played = await pool.rollout(policy, TASKS, limits=Limits(episode_timeout_s=1.0))
            assert time.monotonic() - began < 60
            assert [each.attempts for each in played] == [1, 2, 1, 1, 1, 1]
            assert all(each.status.usable for each in played)

    run(play)


def test_a_worker_that_hangs_beside_other_episodes_is_killed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpenv_client.pool.places.GRACE_S", 0.5)

    async def play() -> None:
        async with EnvPool(Dice, 3, backend="process", workers=1) as pool:
            expected = digests(await pool.rollout(five_rolls_async, TASKS, seed=0))
            policy = OnceAsync(tmp_path / "hung", "hang", {"seconds": 3600}, 1)
            began = time.monotonic()
            played = await pool.rollout(policy, TASKS, seed=0, limits=Limits(episode_timeout_s=1.0))
            assert time.monotonic() - began < 60
            assert digests(played) == expected and played[1].attempts == 2

    run(play)


def test_a_tool_that_takes_too_much_memory_fails_and_the_worker_lives() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 1, backend="process", workers=1, memory_bytes=4 << 30) as pool:
            (eaten,) = await pool.rollout(Calls("eat", size=64 << 30), ["t1"], retries=0)
            assert eaten.trajectory is not None and not eaten.trajectory.steps[0].status.usable
            (fine,) = await pool.rollout(Calls("eat", size=10), ["t1"])
            assert fine.value == "10"

    run(play)


def test_killing_the_pools_owner_leaves_no_worker() -> None:
    async def pids() -> set[int]:
        async with EnvPool(Dice, 2, backend="process", workers=2) as pool:
            played = await pool.rollout(five_rolls, TASKS)
            return {int(each.where.removeprefix("process ")) for each in played}

    for pid in run(pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_server_that_ends_is_left_out_and_its_episodes_are_begun_elsewhere() -> None:
    async def play() -> None:
        with serving(Dice) as one:
            ending = serving(Dice)
            other = ending.__enter__()
            async with EnvPool([one, other], 8, backend="remote") as pool:
                expected = digests(await pool.rollout(five_rolls_async, TASKS, n=10, seed=0))
                places: list[str] = []
                again: list[Played] = []
                async for played in pool.play(slow_rolls, TASKS, n=10, seed=0, retries=5):
                    again.append(played)
                    places.append(played.where)
                    if len(again) == 10:
                        await asyncio.to_thread(ending.__exit__, None, None, None)
                again.sort(key=lambda each: each.assignment.number)
                assert digests(again) == expected
                assert set(places[:10]) == {one, other} and set(places[-8:]) == {one}
                assert any(each.attempts > 1 for each in again)

    run(play)


async def slow_rolls(episode: Any) -> int:
    await asyncio.sleep(0.02)
    return await five_rolls_async(episode)


def test_a_full_server_is_asked_for_fewer_sessions() -> None:
    async def play() -> None:
        with serving(Dice, ServerConfig(max_concurrent_envs=3)) as url:
            async with EnvPool(url, 12, backend="remote") as pool:
                played = await pool.rollout(five_rolls_async, TASKS, n=5, seed=0)
            assert len(played) == 30 and all(each.status.usable for each in played)

    run(play)


def test_a_pool_uses_its_sessions_on_a_server_that_has_no_more_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "connections_allowed", lambda: 20)  # of which 15 are not for probes

    async def play() -> None:
        with serving(Dice, max_concurrent_envs=64) as url:
            servers = Servers(url, 24)
            await servers.start()
            held = [await servers.take(lambda: 60.0) for _ in range(15)]
            for _, client in held:
                await client.client.reset()
            server, last = held.pop()
            await servers.look(server)
            assert not server.free
            await servers.give_back(server, last, finished=1)
            again, client = await servers.take(lambda: 60.0)
            assert again is server and client is last
            await client.client.reset()
            for _, each in [*held, (server, client)]:
                await servers.give_back(server, each, finished=None)

    run(play)


def test_a_file_of_servers_with_weights(tmp_path: Path) -> None:
    async def play() -> None:
        with serving(Dice) as one, serving(Dice) as other:
            file = tmp_path / "servers"
            file.write_text(f"# two\n{one} 3\n\n{other}\n")
            async with EnvPool(f"@{file}", 8, backend="remote") as pool:
                played = await pool.rollout(slow_rolls, TASKS, n=20, seed=0)
            share = sum(each.where == one for each in played) / len(played)
            assert 0.6 < share < 0.9

    run(play)
    with pytest.raises(PoolError, match=r"servers, line 1: 'many' is no weight"):
        (tmp_path / "servers").write_text("http://127.0.0.1:1 many")
        run(EnvPool(f"@{tmp_path / 'servers'}", backend="remote").connect)


def test_servers_that_do_not_answer_are_named_at_once_and_waited_for_where_others_may_come(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"no server answers: http://127\.0\.0\.1:1: cannot connect"):
        run(EnvPool("http://127.0.0.1:1", backend="remote").connect)
    with pytest.raises(ValueError, match="plays on servers; give their URLs"):
        EnvPool(Dice, backend="remote")
    (tmp_path / "servers").write_text("http://127.0.0.1:1")

    async def play() -> None:
        async with EnvPool(f"@{tmp_path / 'servers'}", 8, backend="remote") as pool:
            pool._backend._servers.wait_s = 0.3  # type: ignore[attr-defined]
            before = asyncio.all_tasks()
            with pytest.raises(PoolError, match=r"has had room for 0\.3 s: http://127\.0\.0\.1:1: cannot"):
                await pool.rollout(five_rolls, TASKS, group=4)
            assert asyncio.all_tasks() == before

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_policy_ends_the_rollout_and_the_pool_works_on(kind: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            with pytest.raises(PolicyFailed, match="a mistake of the policy"):
                await pool.rollout(wrong, TASKS)
            with pytest.raises(PoolError, match=r"cannot be played: .*there is no task 'none'") as refused:
                await pool.rollout(five_rolls, ["t1", "none"], group=4)
            assert isinstance(refused.value.__cause__, InvalidMessage)
            left = [*(each.assignment for each in refused.value.finished), *refused.value.unfinished]
            assert sorted(each.number for each in left) == [*range(len(left))] and len(left) > 4
            assert len(await pool.rollout(five_rolls, TASKS)) == 6

    run(play)


def test_an_episode_whose_tool_fails_says_so_and_is_begun_again() -> None:
    async def play(kind: Any) -> None:
        async with kind() as pool:
            (played,) = await pool.rollout(Calls("burst"), ["t1"], retries=0)
            assert played.trajectory is not None
            assert played.trajectory.steps[0].status.code is StatusCode.ENV_ERROR
            assert (played.reward is None) == (not played.status.usable)

    for kind in KINDS:
        run(play, kind)


def test_the_blocking_form_plays_and_steps() -> None:
    with EnvPool(Dice, 2).sync() as pool:
        assert len(pool.rollout(five_rolls, TASKS)) == 6
        assert [each.prompt for each in pool.reset_all(["t1", "t2"]) if each] == ["Reach 1.", "Reach 2."]
        assert all(each and each.reward == 0.125 for each in pool.step_all([calls("roll")] * 2))


def test_what_cannot_travel_is_refused_with_what_to_do() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2, backend="process", workers=1) as pool:
            with pytest.raises(PoolError, match="Put it at the top of a module"):
                await pool.rollout(lambda episode: None, ["t1"])
            with pytest.raises(PoolError, match="return plain data from the policy"):
                await pool.rollout(functools.partial(returns_a_lambda), ["t1"])
            assert len(await pool.rollout(five_rolls, ["t1"])) == 1

    run(play)
    with pytest.raises(PoolError, match="Give a TARGET as text"):
        run(EnvPool(lambda: Dice(), backend="process").connect)


def returns_a_lambda(episode: Any) -> Any:
    return lambda: None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target": Dice, "size": 0}, "size is 0"),
        ({"target": Dice, "backend": "cloud"}, "there is no backend 'cloud'"),
        ({"target": Dice, "workers": 2}, "the backend 'local' has no use for workers"),
        ({"target": "http://127.0.0.1:1"}, 'use backend="remote"'),
        ({"target": Dice, "backend": "process", "address": "auto"}, "the backend 'process' has no use for address"),
        ({"target": ["http://127.0.0.1:1"]}, 'a list of servers is for backend="remote"'),
        ({"target": {"office": Dice, "terminal": Dice}}, "a mapping of targets is for MixedPool"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EnvPool(**arguments)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_backend_says_what_to_install() -> None:
    with pytest.raises(PoolError, match=r'pip install "mcpenv-client\[ray\]"'):
        EnvPool(Dice, backend="ray")


def test_a_target_that_cannot_be_loaded_is_refused_at_the_start() -> None:
    for backend in ("local", "process"):
        with pytest.raises(PoolError, match="nowhere"):
            run(EnvPool("nowhere_mcp", backend=backend).connect)
    with pytest.raises(PoolError, match="at least one server"):
        run(EnvPool([], backend="remote").connect)


def test_more_groups_need_a_seed_before_any_is_played() -> None:
    rows = Rows(range(3), lambda start, stop: [Task(id=f"t{at}", split="test") for at in range(start, stop)], "test")

    async def play() -> None:
        async with EnvPool(Dice, 2) as pool:
            for tasks in (["t1"], rows, TaskSampler(rows), TaskSampler(["t1"]), TaskSampler([{"task": "t1"}])):
                with pytest.raises(ValueError, match="n above 1 needs a seed"):
                    pool.groups(five_rolls, tasks, n=2, group=2)
                pool.groups(five_rolls, tasks, n=2, group=2, seed=1)
            played = await pool.rollout(five_rolls, n=3)
            assert [each.assignment.seed for each in played] == [0, 1, 2]

    run(play)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("pay-rent", "tasks is 'pay-rent', which is one task; give a list of tasks"),
        ({"task": "t1"}, "tasks is a dict, which is one task"),
        (Task(id="t1", split="test"), "tasks is a Task, which is one task"),
    ],
)
def test_one_task_in_place_of_a_list_is_refused(tasks: Any, said: str) -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2) as pool:
            with pytest.raises(ValueError, match=said):
                await pool.rollout(five_rolls, tasks)
            for begin in (pool.play, pool.groups, pool.samples):
                with pytest.raises(ValueError, match=said):
                    begin(five_rolls, tasks, group=2)

    run(play)


def test_limits_of_a_play_below_0_are_refused() -> None:
    async def play() -> None:
        async with EnvPool(Dice, 2) as pool:
            with pytest.raises(ValueError, match="group_timeout_s is -1; it must be 0 or more"):
                pool.samples(five_rolls, ["t1"], group=2, group_timeout_s=-1)
            with pytest.raises(ValueError, match="retries is -1; it must be 0 or more"):
                pool.play(five_rolls, ["t1"], retries=-1)

    run(play)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_policy_is_recorded_where_the_caller_says_so(kind: Any) -> None:
    async def play() -> None:
        async with kind() as pool:
            played = await pool.rollout(wrong_at_three, TASKS, policy_errors="record")
            assert [each.status.code.value for each in played] == ["completed"] * 3 + ["cancelled"] + ["completed"] * 2
            broken = played[3]
            assert (broken.reward, broken.attempts, broken.status.usable) == (None, 1, False)
            assert broken.error is not None and broken.error.endswith("KeyError: 'a mistake of the policy'")
            assert broken.trajectory is not None and broken.trajectory.reason == "policy_error"
            assert len(broken.trajectory.steps) == 1
            with pytest.raises(ValueError, match='use "raise" or "record"'):
                await pool.rollout(five_rolls, TASKS, policy_errors="ignore")

    run(play)


def test_a_server_that_does_not_answer_is_left_out_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcpenv_client.pool.servers.CHECK_S", 0.25)
    monkeypatch.setattr("mcpenv_client.pool.servers.LAST_CHECK_S", 0.5)

    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with EnvPool(f"http://127.0.0.1:{silent.getsockname()[1]}", 2, backend="remote"):
                pass

    with pytest.raises(PoolError, match=r"no server answers: http://127\.0\.0\.1:\d+: no answer within 0\.5 s"):
        run(body)
    assert re.search(r"http://127\.0\.0\.1:\d+ is left out: no answer within 0\.25 s", caplog.text)
