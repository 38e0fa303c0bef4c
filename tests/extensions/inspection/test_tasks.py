"""``mcpenv tasks list`` and ``show``, of an environment's code and of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines

from mcpenv import MCPEnvironment, TaskSet
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.types.tasks import Task

TOKEN = "the-control-token"
DATA: list[dict[str, Any]] = [
    {"id": "a", "prompt": "first", "oracle": [{"tool_name": "say", "arguments": {"n": 1}}]},
    {"id": "b", "prompt": "second"},
    {"id": "c", "split": "test"},
]


class Quiz(MCPEnvironment):
    """Says nothing."""

    tasks = TaskSet(DATA)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Quiz) as address:
        yield address


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


def test_tasks_list_shows_ids_splits_and_prompts(cli: Cli, file: str) -> None:
    done = cli("tasks", "list", "echo_mcp", "--tasks", file)
    assert (done.status, done.out.splitlines()) == (
        0,
        [
            f"train: 2, test: 1, from {file}",
            "",
            "id  split  prompt",
            "a   train  first",
            "b   train  second",
            "c   test   ",
        ],
    )
    assert cli("tasks", "list", "echo_mcp", "--tasks", file, "-n", "1").out.splitlines()[2:] == [
        "id  split  prompt",
        "a   train  first",
        "and 2 more (--number 0 lists all)",
    ]
    document = json.loads(cli("tasks", "list", "echo_mcp", "--tasks", file, "--split", "test", "--json").out)
    assert document == {
        "source": document["source"],
        "licence": None,
        "version": document["version"],
        "splits": {"test": 1},
        "tasks": [Task(**DATA[2]).model_dump(mode="json")],
    }


def test_tasks_list_shows_labels_and_selects_by_them(cli: Cli, tmp_path: Path) -> None:
    tasks = [
        {"id": "a", "level": 1, "family": "sums", "tags": ["small", "safe"]},
        {"id": "b", "level": 2, "family": "sums", "tags": ["small"]},
        {"id": "c", "level": 2, "prompt": "?"},
    ]
    file = tmp_path / "labelled.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def listed(*options: str) -> list[str]:
        return cli("tasks", "list", "echo_mcp", "--tasks", str(file), *options).out.splitlines()[2:]

    assert listed() == [
        "id  split  labels                      prompt",
        "a   train  level 1, sums, small, safe  ",
        "b   train  level 2, sums, small        ",
        "c   train  level 2                     ?",
    ]
    for options, ids in (
        (("--level", "2"), "bc"),
        (("--family", "sums"), "ab"),
        (("--tag", "small", "--tag", "safe"), "a"),
        (("--level", "2", "--family", "sums", "--tag", "small"), "b"),
    ):
        assert [line[0] for line in listed(*options)[1:]] == list(ids), options
    none = cli("tasks", "list", "echo_mcp", "--tasks", str(file), "--level", "3", "--tag", "safe")
    assert (none.status, none.err) == (0, "no task has level 3 and tag 'safe'\n")
    as_json = cli("tasks", "list", "echo_mcp", "--tasks", str(file), "--level", "3", "--json")
    assert (as_json.status, json.loads(as_json.out)["tasks"]) == (0, [])
    assert listed("--level", "2", "-n", "1")[1:] == [
        "b   train  level 2, sums, small  ",
        "and more (--number 0 lists all)",
    ]
    shown = cli("tasks", "show", "echo_mcp", "a", "--tasks", str(file)).out
    assert "level\n  1\n" in shown and "family\n" in shown and '"safe"' in shown


def test_tasks_list_shows_licence_source_and_version(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "licensed.py"
    file.write_text(
        "from mcpenv import MCPEnvironment, TaskSet\n"
        'class Licensed(MCPEnvironment):\n    """Asks."""\n'
        '    tasks = TaskSet([{"id": "a"}]).with_licence("MIT", source="quizzes 1.2")\n'
    )
    document = json.loads(cli("tasks", "list", f"{file}:Licensed", "--json").out)
    assert (document["licence"], document["source"]) == ("MIT", "quizzes 1.2")
    first, second, *_ = cli("tasks", "list", f"{file}:Licensed").out.splitlines()
    assert first == "train: 1, from quizzes 1.2"
    assert second == f"licence MIT, version {document['version']}"


@pytest.mark.filterwarnings("ignore:.*two sources of tasks:UserWarning")
def test_tasks_list_and_inspect_name_the_file_of_a_manifest_that_counts(cli: Cli, file: str, tmp_path: Path) -> None:
    (tmp_path / "quiz").mkdir()
    (tmp_path / "quiz" / "__init__.py").write_text(
        "from mcpenv import MCPEnvironment, TaskSet\n"
        'class Quiz(MCPEnvironment):\n    """Asks."""\n    tasks = TaskSet([{"id": "of-the-class"}])\n'
    )
    manifest = "schema_version: 1\nname: quiz\nentry: quiz/__init__.py:Quiz\ntasks: quiz.jsonl\n"
    (tmp_path / "mcpenv.yaml").write_text(manifest)
    for command in (("tasks", "list"), ("inspect",)):
        assert f"from {file}" in cli(*command, str(tmp_path)).out
    assert "of-the-class" not in cli("tasks", "list", str(tmp_path)).out


def test_tasks_list_and_show_ask_a_server_as_they_ask_code(cli: Cli, file: str, url: str) -> None:
    listed = cli("tasks", "list", url).out.replace(f"from {url}", f"from {file}")
    assert listed == cli("tasks", "list", "echo_mcp", "--tasks", file).out
    for name in (("b",), ("1", "--split", "train"), ("b", "--split", "train")):
        there, here = cli("tasks", "show", url, *name), cli("tasks", "show", "echo_mcp", *name, "--tasks", file)
        assert there == here and here.out.startswith("b  train, version 1\n")


def test_tasks_show_has_all_of_a_task(cli: Cli, file: str) -> None:
    shown = cli("tasks", "show", "echo_mcp", "a", "--tasks", file).out
    assert "  first\n" in shown and '  say {"n": 1}\n' in shown and str(Task(**DATA[0]).stable_seed) in shown
    assert json.loads(cli("tasks", "show", "echo_mcp", "a", "--tasks", file, "--json").out)["id"] == "a"


def test_a_guarded_server_tells_its_tasks_to_who_has_the_token(cli: Cli) -> None:
    with serving(Quiz, ServerConfig(control_token=TOKEN)) as url:
        refused = cli("tasks", "list", url)
        assert refused.status == 2 and "it requires its control token" in refused.err
        assert "first" in cli("tasks", "list", url, "--control-token", TOKEN).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "echo_mcp"), "echo_mcp: EchoEnvironment has no tasks; give it some with --tasks"),
        (("list", "echo_mcp", "--tasks", "FILE", "--split", "dev"), "echo_mcp: there is no split 'dev'"),
        (("show", "echo_mcp", "z", "--tasks", "FILE"), "echo_mcp: there is no task 'z'"),
        (("show", "echo_mcp", "c", "--split", "train", "--tasks", "FILE"), "echo_mcp: the task 'c' is in the split"),
        (("show", "echo_mcp", "9", "--split", "train", "--tasks", "FILE"), "echo_mcp: there is no task 9"),
        (("list", "echo_mcp", "--tasks", "no.jsonl"), "no.jsonl: there is no such file or folder"),
        (("list", "echo_mcp", "--tasks", "FILE", "--number", "-1"), "--number is -1"),
        (("list", "http://127.0.0.1:9", "--tasks", "FILE"), "--set and --tasks are for an environment's code"),
        (("list", "http://127.0.0.1:9"), "cannot connect to http://127.0.0.1:9"),
    ],
)
def test_whatever_is_wrong_is_one_line_and_status_2(cli: Cli, file: str, arguments: tuple[str, ...], said: str) -> None:
    done = cli("tasks", *(file if argument == "FILE" else argument for argument in arguments))
    assert done.status == 2 and done.out == ""
    assert done.err.startswith(f"error: {said}") and done.err.count("\n") == 1


def test_inspect_shows_the_numbers_of_tasks_of_code_and_of_a_server(cli: Cli, url: str) -> None:
    assert json.loads(cli("inspect", url, "--json").out)["tasks"] == {"train": 2, "test": 1}
    shown = cli("inspect", f"{__file__}:Quiz").out
    assert "\nTasks\n  train: 2\n  test: 1\n  from a list in Python\n" in shown
    assert "\nTasks\n" not in cli("inspect", "echo_mcp").out


def test_columns_name_the_fields_of_a_file_of_tasks(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "quiz.json").write_text(json.dumps([{"question": "How many?", "final": "5"}]))
    file = str(tmp_path / "quiz.json")
    done = cli("tasks", "list", "echo_mcp", "--tasks", file, "--columns", "prompt=question,answer=final", "--json")
    (task,) = json.loads(done.out)["tasks"]
    assert (task["id"], task["prompt"], task["metadata"]) == ("train-0", "How many?", {"answer": "5"})
    refused = cli("tasks", "list", "echo_mcp", "--columns", "prompt=question")
    assert (refused.status, "give it with --tasks" in refused.err) == (2, True)
