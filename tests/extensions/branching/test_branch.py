"""Branches: a recorded episode opens at a step, in process and on a server, if its steps come out the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from record_worlds import Dice, Forgetful, Shout, play
from snapshot_worlds import Plain

from mcpenv import MCPEnvironment
from mcpenv.extensions.records.replay import CannotBranch, branch
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode, Recorder, read_episodes
from mcpenv_client import EnvClient
from mcpenv_client.errors import EpisodeDone, InvalidMessage
from mcpenv_client.fingerprint import facts_of_step
from mcpenv_client.types.records import Fork, Trajectory
from mcpenv_client.types.starts import Start


def recorded(folder: Path, seed: int = 3) -> RecordedEpisode:
    """An episode of the game, played in process."""
    with Recorder(folder) as recorder, Dice() as env:
        recorder.attach(env)
        play(env, seed)
    (episode,) = read_episodes(folder)
    return episode


def facts(trajectory: Trajectory, number: int) -> list[Any]:
    return [facts_of_step(step, None) for step in trajectory.steps[:number]]


def rest(env: Any, trajectory: Trajectory, after: int) -> Trajectory:
    """Take the steps of an episode that are left."""
    for step in trajectory.steps[after:]:
        arguments = step.call.arguments
        if step.call.name == "shout":
            env.step(Shout(**arguments))
        else:
            env.call_tool(step.call.name, arguments)
    found = env.trajectory if isinstance(env, MCPEnvironment) else env.trajectory()
    assert isinstance(found, Trajectory)
    return found


@pytest.mark.parametrize("step", [0, 1, 5, 7, 8])
def test_an_episode_opens_at_a_step_and_goes_on_as_its_parent_did(tmp_path: Path, step: int) -> None:
    parent = recorded(tmp_path)
    with Dice() as env:
        branch(env, parent, step)
        begun = env.trajectory
        assert begun is not None and begun.forked_from == Fork(parent.id, step) and begun.episode_id != parent.id
        assert facts(begun, step) == facts(parent.trajectory, step) and len(begun.steps) == step
        ended = rest(env, parent.trajectory, step)
    assert ended.done and ended.total_reward == parent.trajectory.total_reward
    assert facts(ended, 100) == facts(parent.trajectory, 100)


def test_the_first_difference_refuses_with_its_step_and_both_values(tmp_path: Path) -> None:
    parent = recorded(tmp_path)
    with Dice(loaded=True) as env, pytest.raises(CannotBranch) as refused:
        branch(env, parent, len(parent.trajectory.steps) - 1)
    found = refused.value.difference
    assert found is not None and found.step == 8 and found.field == "result.content[0].text"
    assert found.recorded != found.replayed == "16"
    assert "step 8 differs in result.content[0].text" in str(refused.value) and '"16"' in str(refused.value)
    with Dice(loaded=True) as env:
        branch(env, parent, 7)  # the dice are rolled later


def test_an_environment_that_forgets_its_seed_is_refused(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, Forgetful() as env:
        recorder.attach(env)
        env.reset(seed=1, sides=10**9, target=10**10)
        env.call_tool("roll")
        env.call_tool("roll")
    (parent,) = read_episodes(tmp_path)
    with Forgetful() as env, pytest.raises(CannotBranch, match="does not depend on its seed and calls alone"):
        branch(env, parent, 1)


def test_a_step_that_is_not_there_and_an_end_are_refused(tmp_path: Path) -> None:
    parent = recorded(tmp_path)
    last = len(parent.trajectory.steps)
    with Dice() as env:
        with pytest.raises(ValueError, match=f"over after step {last}; give an earlier step"):
            branch(env, parent, last)
        for step in (-1, last + 1):
            with pytest.raises(ValueError, match=f"has {last} steps, and so no step {step}"):
                branch(env, parent, step)


def test_a_refused_branch_is_not_recorded_and_takes_no_steps(tmp_path: Path) -> None:
    parent = recorded(tmp_path / "parent")
    with Recorder(tmp_path / "own") as recorder, Dice(loaded=True) as env:
        recorder.attach(env)
        with pytest.raises(CannotBranch):
            branch(env, parent, 8)
        with pytest.raises(EpisodeDone):
            env.call_tool("roll")
        env.reset(seed=1)
    assert [each.trajectory.seed for each in read_episodes(tmp_path / "own")] == [1]


def test_forks_of_a_branch_are_its_siblings_until_it_goes_on() -> None:
    with Plain() as env:
        env.reset(seed=1)
        for _ in range(3):
            env.call_tool("add")
        parent = env.trajectory
    assert parent is not None
    with Plain() as env:
        branch(env, parent, 2)
        with env.fork() as sibling:
            assert sibling.trajectory is not None and sibling.trajectory.forked_from == Fork(parent.episode_id, 2)
            assert sibling.call_tool("add").text == "3"
        env.call_tool("add")
        assert env.trajectory is not None
        with env.fork() as child:
            assert child.trajectory is not None
            assert child.trajectory.forked_from == Fork(env.trajectory.episode_id, 3)


# -- on a server


@pytest.fixture
def served(tmp_path: Path) -> Any:
    with serving(Dice, ServerConfig(record=tmp_path / "own", max_concurrent_envs=4)) as url:
        yield url


def test_a_client_opens_a_record_that_it_has(served: str, tmp_path: Path) -> None:
    parent = recorded(tmp_path / "parent")
    with EnvClient(served).sync() as client:
        begun = client.branch(parent, 7)
        assert begun.info["mcp_url"] == client.mcp_url is not None
        assert client.trajectory().forked_from == Fork(parent.id, 7)
        ended = rest(client, parent.trajectory, 7)
        assert facts(ended, 100) == facts(parent.trajectory, 100)
    (episode,) = read_episodes(tmp_path / "own")
    assert episode.trajectory.forked_from == Fork(parent.id, 7)
    assert episode.trajectory.total_reward == parent.trajectory.total_reward


def test_a_client_opens_an_episode_of_the_server_s_own_record(served: str) -> None:
    with EnvClient(served).sync() as client:
        play(client, 5)
        parent = client.trajectory()
        client.branch(parent.episode_id, 6)  # on disk, because the branch begins another episode
        assert client.trajectory().forked_from == Fork(parent.episode_id, 6)
        with pytest.raises(InvalidMessage, match="there is no episode 'nothing'"):
            client.branch("nothing", 1)
        with pytest.raises(InvalidMessage, match="and so no step 500"):
            client.branch(parent.episode_id, 500)


def test_a_server_refuses_a_changed_record_and_the_session_goes_on(served: str, tmp_path: Path) -> None:
    parent = recorded(tmp_path / "parent").trajectory
    changed = dataclasses.replace(parent, seed=4)
    with EnvClient(served).sync() as client:
        with pytest.raises(InvalidMessage) as refused:
            client.branch(changed, 9)
        (fault,) = refused.value.errors
        assert fault["type"] == "differs" and fault["loc"][:2] == ["steps", 8]
        assert fault["recorded"] != fault["replayed"]
        with pytest.raises(EpisodeDone):
            client.call_tool("roll")
        client.reset(seed=1)
        client.call_tool("roll")
    (episode,) = read_episodes(tmp_path / "own")
    assert episode.trajectory.seed == 1


@pytest.mark.parametrize(
    "data",
    [
        {"step": 1},
        {"step": True, "episode_id": "a"},
        {"step": 1, "episode_id": "a", "trajectory": {}},
        {"step": 1, "trajectory": {"seed": 3}},
        {"step": 1, "trajectory": {"episode_id": "a"}},
        {"step": 1, "episode_id": "a", "observations": [1]},
        {"step": 1, "episode_id": "a", "more": 1},
        {"step": -1, "episode_id": "a"},
    ],
)
def test_what_is_no_start_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="branch frame"):
        Start.from_wire(json.loads(json.dumps(data)))


def test_the_steps_of_the_prefix_are_not_counted(served: str, tmp_path: Path) -> None:
    parent = recorded(tmp_path / "parent")
    with EnvClient(served).sync() as client:
        client.branch(parent, 7)
        client.call_tool("roll")
        metrics = httpx.get(f"{served}/metrics").text
    taken = [line for line in metrics.splitlines() if line.startswith("mcpenv_steps_total{")]
    assert taken == ['mcpenv_steps_total{tool="roll",status="completed"} 1.0']
    assert 'mcpenv_resets_total{result="ok"} 1.0' in metrics
