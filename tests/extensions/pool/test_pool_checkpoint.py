"""A server, or a training script at any line, is killed: the same episodes go on, and no call is made twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_program import TASKS, blocking_policy, calls_of, rows_of
from durable_fleet import Fleet

from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode

PROGRAM = Path(__file__).with_name("checkpoint_program.py")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One server: where an episode goes on at another one, its errands run there again, which are counted here."""
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder, "Errands", f"{folder}/store?lease_s=3", servers=1) as fleet:
        yield fleet


def run(mode: str, folder: Path, at: int, urls: list[str]) -> int | None:
    """Run the script. Return the number of its lines; None if it was killed before its end."""
    command = [sys.executable, str(PROGRAM), mode, str(folder), str(at), *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def counted(fleet: Fleet) -> Counter[str]:
    file = fleet.folder / "counted"
    found = Counter(file.read_text().split())
    file.unlink()
    return found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "seed"), [("rollouts", 0), ("groups", 1), ("blocking", 2)])
def test_a_script_that_is_killed_at_random_lines_has_the_same_episodes(
    tmp_path: Path, fleet: Fleet, mode: str, seed: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    lines = run(mode, whole, 0, fleet.urls)
    assert lines is not None
    expected, calls = json.loads((whole / "results.json").read_text()), counted(fleet)
    assert expected
    chance, kills = random.Random(seed), 0
    while run(mode, killed, chance.randint(lines // 20, lines // 2) if kills < 4 else 0, fleet.urls) is None:
        kills += 1
    assert kills
    assert json.loads((killed / "results.json").read_text()) == expected
    made = counted(fleet)
    if mode == "groups":  # how many groups begin beyond those of interest depends on time
        assert set(made.values()) == {1}
    else:
        assert made == calls


class Blocking:
    """Kills a server when all episodes have made their first call."""

    def __init__(self, fleet: Fleet, episodes: int) -> None:
        self.there = threading.Barrier(episodes, lambda: fleet.signal(0, signal.SIGKILL))

    def __call__(self, episode: BlockingEpisode) -> int:
        first, *others = calls_of(episode)
        paid = int(episode.call_tool("run", first).text)
        self.there.wait(60)
        return paid + sum(int(episode.call_tool("run", each).text) for each in others)


class Async(Blocking):
    """The same with an async policy."""

    async def __call__(self, episode: Episode) -> int:  # type: ignore[override]
        first, *others = calls_of(episode)
        paid = int((await episode.call_tool("run", first)).text)
        await asyncio.to_thread(self.there.wait, 60)
        return paid + sum([int((await episode.call_tool("run", each)).text) for each in others])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("policy", [Blocking, Async])
def test_episodes_of_a_killed_server_go_on_at_another(tmp_path: Path, policy: type[Blocking]) -> None:
    with Fleet(tmp_path, "Errands", f"{tmp_path}/store?lease_s=2", servers=2) as fleet:
        with EnvPool(fleet.urls, 4, backend="remote").sync() as pool:
            played = pool.rollout(policy(fleet, 4), TASKS[:4], seed=1)
        assert {each.where for each in played} == {fleet.urls[1]}
        assert [each.attempts for each in played] == [1] * 4
        with EnvPool(fleet.urls, 4, backend="remote").sync() as pool:
            assert rows_of(pool.rollout(blocking_policy, TASKS[:4], seed=1)) == rows_of(played)
