"""Calls that were played become a line of a file of tasks, proposed and validated by a server under `mcpenv dev`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mcpenv import TaskSet
from mcpenv.extensions.reload.saved_tasks import SavedTasks
from mcpenv.extensions.validation.tasks import validate
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import Target, load_target

CODE = '''
import uuid

from mcpenv import MCPEnvironment, ObjectWorld, TaskSet


class Shop(MCPEnvironment):
    """Sell what is in stock."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet.from_jsonl("tasks.jsonl")

    def __init__(self) -> None:
        self.stock, self.sales = {}, {}
        self.world = ObjectWorld(lambda: {"stock": self.stock, "sales": self.sales})

        @self.tool
        def sell(item: str, count: int) -> int:
            """Sell some of an item, which must be in stock."""
            self.stock[item] -= count
            self.sales[str(len(self.sales) + 1)] = {"item": item, "count": count, "receipt": uuid.uuid4().hex}
            return self.stock[item]

        @self.tool
        def look() -> dict[str, int]:
            """Return the stock."""
            return self.stock

    def reset(self, seed: int | None = None, episode_id: str | None = None, apples: int = 9) -> None:
        """Fill the shop."""
        self.stock, self.sales = {"apples": apples}, {}
'''
FIRST = (
    '{"id": "first", "prompt": "Sell.", "verifier": {"kind": "expect_only", "changes": {"stock/*": {"$any": true}}}}'
)
SALE = {"tool_name": "sell", "arguments": {"item": "apples", "count": 2}}
TASK: dict[str, Any] = {
    "id": "two-apples",
    "split": "train",
    "prompt": "Sell two apples.",
    "options": {"apples": 7},
    "seed": 5,
    "oracle": [SALE],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "environment.py").write_text(CODE)
    (folder / "tasks.jsonl").write_text(FIRST)  # without an end of line, as editors leave it
    return folder


@pytest.fixture
def target(folder: Path) -> Target:
    return load_target(f"{folder}/environment.py:Shop")


@pytest.fixture
def url(target: Target) -> Iterator[str]:
    config = ServerConfig(console=True, extensions=(functools.partial(SavedTasks, target),))
    with serving(target.factory, config) as url:
        yield url


def saved(url: str, kind: str = "task", *, status: int = 200, anyway: bool = False, **fields: Any) -> dict[str, Any]:
    body = {"kind": kind, "task": {**TASK, **fields}, "anyway": anyway}
    answer = httpx.post(f"{url}/console/dev/tasks", json=body, timeout=60)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lines(folder: Path, name: str = "tasks.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_verifier_is_proposed_from_the_changes_and_the_task_passes_validation(
    url: str, folder: Path, target: Target
) -> None:
    answer = saved(url)
    assert answer["written"] and not answer["problems"], answer
    first, task = lines(folder)
    assert first == json.loads(FIRST)
    assert task["verifier"] == {
        "kind": "expect_exactly",
        "changes": {
            "stock/apples": 5,
            # what two plays do not have in common may be anything
            "sales/1": {"item": "apples", "count": 2, "receipt": {"$any": True}},
        },
    }
    written = TaskSet.from_jsonl(folder / "tasks.jsonl").find("two-apples")
    assert (written.options, written.seed) == ({"apples": 7}, 5)
    assert [each.problems for each in validate(target.make, [written]).tasks] == [[]]


def test_a_test_is_a_task_of_another_split(url: str, folder: Path) -> None:
    assert saved(url, "test", split="test")["written"]
    assert lines(folder)[-1]["split"] == "test"


def test_an_id_is_never_written_twice(url: str, folder: Path) -> None:
    before = (folder / "tasks.jsonl").read_bytes()
    assert "has a task 'first' already" in saved(url, status=409, id="first")["message"]
    saved(url)
    assert "two-apples" in saved(url, status=409, anyway=True)["message"]
    assert (folder / "tasks.jsonl").read_bytes().startswith(before)
    assert len(lines(folder)) == 2
    assert sorted(file.name for file in folder.iterdir() if "tasks" in file.name) == ["tasks.jsonl"]


def test_a_task_with_problems_is_written_only_if_so_wanted(url: str, folder: Path) -> None:
    look = {"tool_name": "look", "arguments": {}}
    answer = saved(url, id="idle", oracle=[look])
    assert not answer["written"] and answer["problems"][0]["remedy"]
    assert "change nothing in the world" in answer["notes"][0]
    assert len(lines(folder)) == 1
    assert saved(url, id="idle", oracle=[look], anyway=True)["written"]
    assert lines(folder)[-1]["id"] == "idle"


def test_a_bug_is_no_task_and_is_said_to_happen_again_or_not(url: str, folder: Path) -> None:
    broken = {"tool_name": "sell", "arguments": {"item": "pears", "count": 1}}
    answer = saved(
        url, "bug", id="pears", split="bugs", oracle=[broken], metadata={"expected": "a text", "seen": "..."}
    )
    assert answer["written"] and answer["notes"] == ["The calls give the same results again."]
    assert len(lines(folder)) == 1
    assert lines(folder, "bugs.jsonl")[0]["metadata"]["expected"] == "a text"


@pytest.mark.parametrize("task_id", ["../../etc/passwd", "a/b", "..", "a\nb"])
def test_an_id_names_no_file(url: str, folder: Path, task_id: str) -> None:
    body = {"kind": "task", "task": {**TASK, "id": task_id}}
    answer = httpx.post(f"{url}/console/dev/tasks", json=body, timeout=60)
    assert answer.status_code in (200, 422)
    assert sorted(file.name for file in folder.parent.iterdir()) == ["shop"]
    assert {file.name for file in folder.iterdir() if file.suffix} == {"environment.py", "tasks.jsonl"}


def test_a_link_out_of_the_folder_is_not_written(url: str, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text("")
    (folder / "bugs.jsonl").symlink_to(outside)
    assert "is no plain file" in saved(url, "bug", status=422)["message"]
    assert outside.read_text() == ""


@pytest.mark.parametrize("body", [{}, {"kind": "poem", "task": {}}, {"kind": "task", "task": {"id": 1}}])
def test_what_is_no_task_is_refused(url: str, body: dict[str, Any]) -> None:
    assert httpx.post(f"{url}/console/dev/tasks", json=body).status_code == 422
    assert httpx.get(f"{url}/console/dev/tasks").json() == {
        "files": {"task": "tasks.jsonl", "test": "tasks.jsonl", "bug": "bugs.jsonl"}
    }


def test_the_route_needs_the_control_token(target: Target) -> None:
    config = ServerConfig(
        console=True, control_token="a-control-token", extensions=(functools.partial(SavedTasks, target),)
    )
    with serving(target.factory, config) as url:
        assert httpx.post(f"{url}/console/dev/tasks", json={"kind": "task", "task": TASK}).status_code == 401


def test_a_line_that_the_reader_would_refuse_is_not_written_whatever_is_wanted(url: str, folder: Path) -> None:
    before = (folder / "tasks.jsonl").read_bytes()
    refused = saved(url, status=422, anyway=True, verifier={"kind": "nope"})
    assert "could not be read any more" in refused["message"] and "nope" in refused["message"]
    assert (folder / "tasks.jsonl").read_bytes() == before
    assert sorted(file.name for file in folder.iterdir() if file.is_file()) == ["environment.py", "tasks.jsonl"]


def test_a_file_with_columns_of_its_own_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    columns = 'TaskSet.from_jsonl("tasks.jsonl", columns={"question": "prompt"})'
    (folder / "environment.py").write_text(CODE.replace('TaskSet.from_jsonl("tasks.jsonl")', columns))
    own = FIRST.replace('"prompt"', '"question"')
    (folder / "tasks.jsonl").write_text(own)
    target = load_target(f"{folder}/environment.py:Shop")
    config = ServerConfig(console=True, extensions=(functools.partial(SavedTasks, target),))
    with serving(target.factory, config) as url:
        assert "in its own form" in saved(url, status=422, anyway=True)["message"]
    assert (folder / "tasks.jsonl").read_text() == own


def test_a_key_with_a_star_has_no_verifier_proposed(folder: Path) -> None:
    (folder / "environment.py").write_text(CODE.replace("str(len(self.sales) + 1)", '"*"'))
    target = load_target(f"{folder}/environment.py:Shop")
    config = ServerConfig(console=True, extensions=(functools.partial(SavedTasks, target),))
    with serving(target.factory, config) as url:
        answer = saved(url, id="star")
    assert "because of its *" in answer["notes"][0] and "verifier" not in json.loads(answer["row"])


def test_an_id_of_a_line_with_a_separator_of_unicode_is_known(url: str, folder: Path) -> None:
    task = {**TASK, "id": "odd", "prompt": "one\u2028two"}
    (folder / "bugs.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps(task, ensure_ascii=False).encode() + b"\n\xff\xfe\n"
    )
    assert "odd" in saved(url, "bug", status=409, id="odd")["message"]
