"""Tasks at a server: OpenEnv's routes, the client's methods, and the token that guards them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import Cli, command_lines, started

from mcpenv import MCPEnvironment, StartupError, TaskSet
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target
from mcpenv_client import EnvClient, InvalidMessage, Unauthorized
from mcpenv_client.types.tasks import Task

TOKEN = "the-control-token"
DATA: list[dict[str, Any]] = [
    {"id": "a", "prompt": "first", "oracle": [{"tool_name": "say", "arguments": {"n": 1}}]},
    {"id": "b", "prompt": "second"},
    {"id": "c", "split": "test"},
]


class Quiz(MCPEnvironment):
    """Says nothing."""

    EXPOSED_NAME = "the quiz"
    tasks = TaskSet(DATA)


class Bare(MCPEnvironment):
    """Has no tasks."""


def make_many(rng: random.Random, index: int) -> dict[str, Any]:
    return {"prompt": f"{index}: {rng.random()}"}


class Many(MCPEnvironment):
    """Has more tasks than an answer."""

    tasks = TaskSet.generate(make_many, seed=1, sizes={"train": 1_000_000, "test": 1200})


def plain_factory() -> Any:
    return Quiz()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Quiz) as address:
        yield address


@pytest.fixture(scope="module")
def many_url() -> Iterator[str]:
    with serving(Many) as address:
        yield address


# -- routes


def test_the_routes_answer_in_openenvs_shape(url: str) -> None:
    def ask(path: str, **body: Any) -> Any:
        reply = httpx.post(url + path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    whole = [Task(**task).model_dump(mode="json") for task in DATA]
    assert httpx.get(f"{url}/list_environments").json() == ["the quiz"]
    assert httpx.get(f"{url}/the%20quiz/splits").json() == [
        {"name": "train", "type": "train"},
        {"name": "test", "type": "test"},
    ]
    assert ask("/The%20Quiz/tasks", split="train") == {"tasks": whole[:2], "env_name": "the quiz"}
    assert ask("/the quiz/num_tasks", split="train") == {"num_tasks": 2}
    assert ask("/the quiz/task", split="train", index=1) == {"task": whole[1], "env_name": "the quiz"}
    for given, found in (
        ({}, whole[:2]),
        ({"start": 1}, whole[1:2]),
        ({"stop": 1}, whole[:1]),
        ({"start": 1, "stop": 99}, whole[1:2]),
        ({"start": 9}, []),
    ):
        assert ask("/the quiz/task_range", split="train", **given) == {"tasks": found, "env_name": "the quiz"}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/another/task", {"split": "train", "index": 0}, 404, "unknown environment 'another'"),
        ("/the quiz/task", {"split": "dev", "index": 0}, 400, "there is no split 'dev' (there are: 'train', 'test')"),
        ("/the quiz/num_tasks", {"split": "dev"}, 400, "there is no split 'dev' (there are: 'train', 'test')"),
        ("/the quiz/task", {"split": "test", "index": 1}, 400, "there is no task 1: 'test' has tasks 0 to 0"),
        ("/the quiz/task", {"split": "test", "index": -1}, 400, "there is no task -1: 'test' has tasks 0 to 0"),
        ("/the quiz/task_range", {"split": "test", "start": -1}, 400, "start and stop count from 0"),
        ("/the quiz/task", {"split": "test"}, 422, "index: Field required"),
        ("/the quiz/task", {"split": "test", "index": "0"}, 422, "index: Input should be a valid integer"),
        ("/the quiz/task", {"split": "test", "index": True}, 422, "index: Input should be a valid integer"),
        ("/the quiz/tasks", {"split": "test", "more": 1}, 422, "more: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_question_is_refused_in_words(url: str, path: str, body: Any, status: int, said: str) -> None:
    reply = httpx.post(url + path, json=body)
    assert reply.status_code == status
    assert reply.json()["detail"].startswith(said)


@pytest.mark.extension("api_docs")
def test_the_routes_are_described_where_there_are_tasks(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert {path for path in paths if path.startswith("/the quiz/")} == {
        f"/the quiz/{name}" for name in ("splits", "num_tasks", "task", "task_range", "tasks")
    }
    assert "the quiz/task_range" in httpx.get(f"{url}/docs").text


def test_more_tasks_than_an_answer_holds_are_asked_for_in_ranges(many_url: str) -> None:
    for path, body in (("tasks", {"split": "train"}), ("task_range", {"split": "train", "start": 5})):
        reply = httpx.post(f"{many_url}/Many/{path}", json=body)
        assert reply.status_code == 400 and "ask for at most 10000 at a time" in reply.json()["detail"]
    last = httpx.post(f"{many_url}/Many/task", json={"split": "train", "index": 999_999}).json()["task"]
    assert Task(**last) == Many.tasks.get("train", 999_999)


def test_an_environment_without_tasks_says_so() -> None:
    with serving(Bare) as url:
        reply = httpx.get(f"{url}/Bare/splits")
        assert (reply.status_code, reply.json()) == (501, {"detail": "this environment has no tasks"})
        assert httpx.get(f"{url}/metadata").json()["tasks"] is None
        with pytest.raises(InvalidMessage, match="this environment has no tasks"):
            EnvClient(url).sync().splits()


def test_a_factorys_environment_has_its_tasks_too() -> None:
    with serving(plain_factory) as url:
        assert EnvClient(url).sync().num_tasks("train") == 2


def test_tasks_need_the_control_token_where_one_is_set_and_metadata_has_their_numbers_only() -> None:
    with serving(Quiz, ServerConfig(control_token=TOKEN)) as url:
        assert httpx.get(f"{url}/list_environments").status_code == 401
        reply = httpx.post(f"{url}/the quiz/task", json={"split": "train", "index": 0})
        assert reply.status_code == 401 and "first" not in reply.text
        with pytest.raises(Unauthorized):
            EnvClient(url).sync().splits()
        client = EnvClient(url, headers={"Authorization": f"Bearer {TOKEN}"}).sync()
        assert client.get_task("train", 0).prompt == "first"
        assert client.metadata()["tasks"] == {"train": 2, "test": 1}


def test_production_has_no_tasks() -> None:
    with serving(Quiz, mode="production") as url:
        assert httpx.get(f"{url}/list_environments").status_code == 404
        assert httpx.get(f"{url}/the quiz/splits").status_code == 404
        assert httpx.get(f"{url}/metadata").json()["tasks"] is None


def test_a_server_does_not_start_with_tasks_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n')

    class Broken(MCPEnvironment):
        tasks = TaskSet.from_jsonl(tmp_path / "tasks.jsonl")

    class Raising(MCPEnvironment):
        tasks = TaskSet.generate(lambda rng, index: [][index], seed=1, sizes={"train": 1})

    for cls, said in (
        (Broken, r"the tasks of Broken cannot be read: tasks\.jsonl, line 1: id: Input should be a valid string"),
        (
            Raising,
            r"the tasks of Raising cannot be read: task 0 of 'train': the function raised IndexError: list index",
        ),
    ):
        with pytest.raises(StartupError, match=said):
            with serving(cls):
                pass


def test_a_slow_generator_keeps_nobody_waiting() -> None:
    asked, answered = threading.Event(), threading.Event()

    def wait(rng: random.Random, index: int) -> dict[str, Any]:
        if index == 50:
            asked.set()
            assert answered.wait(30)
        return {}

    class Slow(MCPEnvironment):
        tasks = TaskSet.generate(wait, seed=1, sizes={"train": 51})

    with serving(Slow) as url:
        got: list[Task] = []
        asking = threading.Thread(target=lambda: got.append(EnvClient(url).sync().get_task("train", 50)))
        asking.start()
        assert asked.wait(30)
        assert httpx.get(f"{url}/health").status_code == 200
        answered.set()
        asking.join()
        assert got[0].id == "train-50"


# -- the client


def test_the_client_reads_tasks_blocking_and_async(url: str) -> None:
    client = EnvClient(url).sync()
    assert client.splits() == ["train", "test"]
    assert client.num_tasks("train") == 2
    assert client.get_task("train", 0) == Quiz.tasks.get("train", 0)
    assert [task.id for task in client.get_tasks("train")] == ["a", "b"]
    assert [task.id for task in client.get_tasks("train", 1)] == ["b"]
    assert client.get_tasks("test", 0, 0) == []

    async def ask() -> list[Any]:
        asked = EnvClient(url)
        return [await asked.splits(), await asked.num_tasks("test"), (await asked.get_tasks("test"))[0].id]

    assert asyncio.run(ask()) == [["train", "test"], 1, "c"]


def test_an_environment_and_its_client_have_the_same_methods_for_tasks(url: str) -> None:
    client = EnvClient(url).sync()
    bare: dict[str, Any] = {"level": None, "family": None, "tags": []}
    for source in (client, Quiz, Quiz()):
        assert source.splits() == ["train", "test"]
        assert source.num_tasks("train") == 2
        assert source.get_task("train", 1).id == "b"
        assert [task.id for task in source.get_tasks("train", 1)] == ["b"]
        assert source.rows("train") == [
            {"prompt": [{"role": "user", "content": "first"}], "split": "train", "index": 0, "task_id": "a", **bare},
            {"prompt": [{"role": "user", "content": "second"}], "split": "train", "index": 1, "task_id": "b", **bare},
        ]
        with pytest.raises(InvalidMessage, match="there is no split 'dev'"):
            source.rows("dev")
    with pytest.raises(InvalidMessage, match="Bare has no tasks"):
        Bare.rows("train")


@pytest.mark.parametrize("environment", [Bare, Quiz])
def test_a_reset_whose_task_is_none_has_no_task(environment: type[MCPEnvironment]) -> None:
    with serving(environment) as address, EnvClient(address).sync() as client:
        assert client.reset(task=None).metadata.get("task") is None
    with environment() as env:
        assert "task" not in env.reset(task=None).metadata
        with pytest.raises(InvalidMessage, match=r"unknown reset option 'task'|there is no task 'other'"):
            env.reset(task="other")


def test_the_client_reads_long_splits_a_page_at_a_time(many_url: str) -> None:
    client = EnvClient(many_url).sync()
    tasks = client.get_tasks("test")
    assert tasks == [*Many.tasks.select(split="test")]
    assert [task.id for task in client.get_tasks("test", 499, 1001)] == [f"test-{index}" for index in range(499, 1001)]


def test_the_client_raises_what_the_server_refuses(url: str) -> None:
    client = EnvClient(url).sync()
    for ask in (
        lambda: client.get_task("train", 2),
        lambda: client.get_task("train", -1),
        lambda: client.num_tasks("dev"),
    ):
        with pytest.raises(InvalidMessage, match=r"there is no (task|split)"):
            ask()


# -- other tasks for a target


def test_tasks_of_a_file_take_the_place_of_the_classs_own_and_the_class_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(
        "from mcpenv import MCPEnvironment, TaskSet\n"
        "class World(MCPEnvironment):\n"
        "    '''A world.'''\n"
        "    tasks = TaskSet([{'id': 'own'}])\n"
        "    def __init__(self, size: int = 1) -> None:\n"
        "        self.size = size\n"
        "def make(size: int = 2) -> World:\n"
        "    return World(size)\n"
    )
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "x", "split": "dev"}\n')
    for spec in (str(tmp_path), f"{tmp_path}:make"):
        target = load_target(spec, ["size=5"], other)
        with target.make() as env:
            assert (env.size, type(env).exposed_name(), type(env).__doc__) == (5, "World", "A world.")
            assert env.tasks is not None and env.tasks.sizes() == {"dev": 1}
        with serving(target.factory) as url:
            assert EnvClient(url).sync().metadata()["tasks"] == {"dev": 1}
            assert EnvClient(url).sync().get_task("dev", 0).id == "x"
        with load_target(spec).make() as env:
            assert env.tasks is not None and env.tasks.sizes() == {"train": 1}


# -- the command line


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Command lines in this process."""
    with command_lines(None, monkeypatch, capfd) as run:
        yield run


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "quiz.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in DATA))
    return str(path)


@pytest.mark.process
def test_run_serves_the_tasks_of_a_file(tmp_path: Path, file: str) -> None:
    with started(tmp_path, "run", "echo_mcp", "--port", "0", "--tasks", file) as process:
        client = EnvClient(process.url()).sync()
        assert client.metadata()["tasks"] == {"train": 2, "test": 1}
        with client:
            assert client.reset(task="b").metadata["prompt"] == "second"


def test_run_refuses_tasks_that_cannot_be_read(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n{"id": "a"}\n')
    done = cli("run", "echo_mcp", "--port", "0", "--tasks", "tasks.jsonl")
    assert done.status == 2 and done.err.count("\n") == 1
    said = "error: the tasks of EchoEnvironment cannot be read: tasks.jsonl, line 2: id: 'a' is the id"
    assert done.err.startswith(said)
