"""The licence, source and version of an environment's tasks, in its records."""

from __future__ import annotations

from pathlib import Path

from mcpenv import MCPEnvironment, Recorder, TaskSet, read_episodes
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode
from mcpenv_client import EnvClient


class Licensed(MCPEnvironment):
    """Asks."""

    tasks = TaskSet([{"id": "a", "level": 2}]).with_licence("MIT", source="quizzes 1.2")


def _origin() -> dict[str, str | None]:
    return {"licence": "MIT", "source": "quizzes 1.2", "version": Licensed.tasks.version}


def test_an_episode_of_a_task_has_the_origin_of_the_task_set(tmp_path: Path) -> None:
    env = Licensed()
    with Recorder(tmp_path) as recorder:
        recorder.attach(env)
        env.reset()
        env.end()
        env.reset(task="a")
        env.end()
    bare, played = read_episodes(tmp_path)
    assert bare.environment.tasks is None
    assert played.environment.tasks == _origin()
    assert played.trajectory.task == Licensed.tasks.find("a")


def test_a_record_without_the_origin_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        env = Licensed()
        recorder.attach(env)
        env.reset(task="a")
        env.end()
    (episode,) = read_episodes(tmp_path)
    origin = b',"tasks":{"licence":"MIT","source":"quizzes 1.2","version":"%s"}' % Licensed.tasks.version.encode()
    line = episode.line()
    assert line.count(origin) == 1
    assert RecordedEpisode.from_line(line.replace(origin, b"")).environment.tasks is None


def test_a_server_tells_the_origin_and_its_records_have_it(tmp_path: Path) -> None:
    with serving(Licensed, ServerConfig(record=tmp_path)) as url, EnvClient(url).sync() as client:
        assert client.metadata()["task_set"] == _origin()
        client.reset(task="a")
        client.end()
    (episode,) = read_episodes(tmp_path)
    assert episode.environment.tasks == _origin()
