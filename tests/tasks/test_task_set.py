"""Task sets: where tasks come from, what they are refused for, and that every process has the same ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mcpenv.tasks import InvalidTasks, NoSuchTask, TaskSet
from mcpenv.tasks.columns import parse_columns
from mcpenv_client.types.tasks import OracleCall, Task, TaskLimits

FULL = {
    "id": "pay",
    "split": "test",
    "prompt": "Pay 3 to Bo.",
    "options": {"rows": [1, 2]},
    "seed": 7,
    "limits": {"max_steps": 5, "timeout_s": 2},
    "metadata": {"answer": "3", "at": None},
    "version": "2",
    "oracle": [{"tool_name": "pay", "arguments": {"amount": 3}}, {"tool_name": "done"}],
    "verifier": {"kind": "expect_only", "changes": {"accounts/1/balance": 7}},
    "reward_range": [0.0, 2.0],
}
TASK = Task(
    id="pay",
    split="test",
    prompt="Pay 3 to Bo.",
    options={"rows": [1, 2]},
    seed=7,
    limits=TaskLimits(max_steps=5, timeout_s=2.0),
    metadata={"answer": "3", "at": None},
    version="2",
    oracle=[OracleCall(tool_name="pay", arguments={"amount": 3}), OracleCall(tool_name="done")],
    verifier={"kind": "expect_only", "changes": {"accounts/1/balance": 7}},
    reward_range=(0.0, 2.0),
)


def rows(*ids: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": name, **more} for name in ids]


def jsonl(file: Path, *lines: Any) -> Path:
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return file


def parquet(file: Path, data: list[dict[str, Any]], row_group_size: int = 2) -> Path:
    pq.write_table(pa.Table.from_pylist(data), file, row_group_size=row_group_size)
    return file


def dataset(folder: Path, data: dict[str, list[dict[str, Any]]] | list[dict[str, Any]]) -> Path:
    from datasets import Dataset, DatasetDict

    if isinstance(data, list):
        Dataset.from_list(data).save_to_disk(str(folder))
    else:
        DatasetDict({name: Dataset.from_list(part) for name, part in data.items()}).save_to_disk(str(folder))
    return folder


# -- what a set answers


def hub(folder: Path, data: dict[str, list[dict[str, Any]]]) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\n")
    for split, part in data.items():
        for shard, row in enumerate(part):
            parquet(folder / "data" / f"{split}-{shard:05}-of-{len(part):05}.parquet", [row])
    return folder


needs_datasets = pytest.mark.extension("datasets")
SOURCES = [
    *("list", "jsonl", "array", "json", "gzip"),
    *(pytest.param(name, marks=needs_datasets) for name in ("parquet", "dataset", "hub", "files")),
]


@pytest.fixture(params=SOURCES)
def five(request: pytest.FixtureRequest, tmp_path: Path) -> TaskSet:
    """The same five tasks from each kind of source."""
    data = [*rows("a", "b", "c", split="train", prompt="x"), *rows("d", "e", split="test", prompt="y")]
    if request.param == "list":
        return TaskSet(iter(data))
    if request.param == "jsonl":
        return TaskSet.from_path(jsonl(tmp_path / "tasks.jsonl", *data))
    if request.param == "array":
        (tmp_path / "tasks.json").write_text("\ufeff \n" + json.dumps(data, indent=1))
        return TaskSet.from_path(tmp_path / "tasks.json")
    if request.param == "json":
        return TaskSet.from_path(jsonl(tmp_path / "tasks.json", *data))
    if request.param == "gzip":
        (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(jsonl(tmp_path / "a", *data).read_bytes()))
        return TaskSet.from_path(tmp_path / "tasks.jsonl.gz")
    if request.param == "parquet":
        return TaskSet.from_path(parquet(tmp_path / "tasks.parquet", data))
    if request.param == "hub":
        found = {"train": data[:3], "test": data[3:]}
        return TaskSet.from_path(hub(tmp_path / "tasks", found))
    if request.param == "files":
        for name, part in (("train", data[:3]), ("test", data[3:])):
            (tmp_path / "tasks" / name).mkdir(parents=True)
            jsonl(tmp_path / "tasks" / name / "0000.jsonl", *part)
        return TaskSet.from_path(tmp_path / "tasks")
    return TaskSet.from_path(dataset(tmp_path / "tasks", {"train": data[:3], "test": data[3:]}))


def test_every_source_answers_alike(five: TaskSet) -> None:
    assert five.splits() == ["train", "test"]
    assert (five.size("train"), five.size("test"), len(five)) == (3, 2, 5)
    assert [five.get("test", index).id for index in (1, 0)] == ["e", "d"]
    assert five.find("b") == five.get("train", 1) == Task(id="b", prompt="x")
    assert [task.id for task in five] == list("abcde")
    assert [task.id for task in five.select(split="test")] == ["d", "e"]
    assert five.version == TaskSet([*five]).version


def test_what_a_set_does_not_have_is_refused(five: TaskSet) -> None:
    with pytest.raises(NoSuchTask, match=r"no split 'dev' \(there are: 'train', 'test'\)") as refused:
        five.get("dev", 0)
    assert refused.value.errors[0]["loc"] == ["split"]
    for index in (-1, 3, 2**70):
        with pytest.raises(NoSuchTask, match=f"no task {index}: 'train' has tasks 0 to 2") as refused:
            five.get("train", index)
        assert refused.value.errors[0]["loc"] == ["index"]
    with pytest.raises(NoSuchTask, match="no task 'z'"):
        five.find("z")
    with pytest.raises(NoSuchTask, match=r"Did you mean 'train'\?"):
        five.size("tran")
    with pytest.raises(NoSuchTask, match="no split 'dev'"):
        five.select(split="dev").splits()


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "inputs.md"
TASK_FILES = PAGE.read_text(encoding="utf-8").partition("\n## Task files\n")[2].partition("\n\n`prompt`")[0]


TABLES = (".parquet", ".pq")


@pytest.mark.parametrize(
    "suffix",
    [
        pytest.param(suffix, marks=[needs_datasets] * (suffix in TABLES))
        for suffix in re.findall(r"`(\.[\w.]+)`", TASK_FILES)
    ],
)
def test_each_kind_of_file_of_the_page_is_taken_or_refused_by_name(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"tasks{suffix}"
    is_refused = suffix in re.search(r"\n\| other suffixes \((.*)\) \| refused", TASK_FILES)[1]  # type: ignore[index]
    if suffix in TABLES:
        pq.write_table(pa.Table.from_pylist(rows("a", "b")), file)
    else:
        content = jsonl(tmp_path / "content", *rows("a", "b")).read_bytes()
        file.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    if is_refused:
        with pytest.raises(InvalidTasks, match=r"this is not a \.jsonl file, a \.parquet file") as raised:
            TaskSet.from_path(file)
        assert str(file) in str(raised.value)
    else:
        assert [task.id for task in TaskSet.from_path(file)] == ["a", "b"]


@needs_datasets
def test_every_field_of_a_task_is_read_from_every_source(tmp_path: Path) -> None:
    as_text = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in FULL.items()}
    for tasks in (
        TaskSet([FULL]),
        TaskSet([TASK]),
        TaskSet.from_jsonl(jsonl(tmp_path / "tasks.jsonl", FULL)),
        TaskSet.from_parquet(parquet(tmp_path / "tasks.parquet", [FULL])),
        TaskSet.from_parquet(parquet(tmp_path / "text.parquet", [as_text])),
        TaskSet.from_dataset(dataset(tmp_path / "tasks", [FULL])),
        TaskSet.from_dataset(dataset(tmp_path / "split", {"test": [FULL]})),
    ):
        assert [*tasks] == [TASK]


@needs_datasets
def test_a_null_of_a_table_is_what_is_not_given(tmp_path: Path) -> None:
    data: list[dict[str, Any]] = [
        {
            "id": "a",
            "options": {"x": 1},
            "oracle": [{"tool_name": "t", "arguments": {"p": 1}}],
            "seed": None,
            "prompt": None,
            "split": None,
        },
        {
            "id": "b",
            "options": {"y": 2},
            "oracle": [{"tool_name": "u", "arguments": {"q": 1}}],
            "seed": 3,
            "prompt": "x",
            "split": "dev",
        },
    ]
    first, second = TaskSet.from_parquet(parquet(tmp_path / "tasks.parquet", data))
    assert (first.options, second.options) == ({"x": 1}, {"y": 2})
    assert first.oracle == [OracleCall(tool_name="t", arguments={"p": 1})]
    assert (first.seed, second.seed) == (None, 3)
    assert (first.prompt, first.split, second.prompt, second.split) == ("", "train", "x", "dev")


@needs_datasets
def test_rows_are_read_from_the_row_groups_that_have_them(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(11)]
    tasks = TaskSet.from_parquet(parquet(tmp_path / "tasks.parquet", rows(*names), row_group_size=3))
    order = random.Random(0).sample(range(11), 11)
    assert [tasks.get("train", index).id for index in order] == [names[index] for index in order]


# -- rows of other shapes


@needs_datasets
def test_columns_say_what_the_rows_of_a_foreign_file_are(tmp_path: Path) -> None:
    data = [
        {"question": "2+2?", "answer": "4", "level": 1, "source": "book", "seed": 5},
        {"question": "1+1?", "answer": "2", "level": 2, "source": "book", "seed": 6},
    ]
    columns = {"question": "prompt", "level": "options.level", "source": None}
    for tasks in (
        TaskSet.from_jsonl(jsonl(tmp_path / "qa.jsonl", *data), columns=columns, split="test"),
        TaskSet.from_parquet(parquet(tmp_path / "qa.parquet", data), columns=columns, split="test"),
        TaskSet.from_dataset(dataset(tmp_path / "qa", {"test": data}), columns=columns),
    ):
        assert tasks.get("test", 1) == Task(
            id="test-1", split="test", prompt="1+1?", options={"level": 2}, metadata={"answer": "2"}, seed=6
        )
        assert tasks.find("test-0").prompt == "2+2?"


def test_columns_with_dots_and_metadata_of_their_own_keep_their_names(tmp_path: Path) -> None:
    data = {"q": "2+2?", "a.b": 1, "metadata": {"c": 2}, "level": 3}
    file = jsonl(tmp_path / "qa.jsonl", data)
    tasks = TaskSet.from_jsonl(file, columns={"q": "prompt", "level": "metadata.d.e"})
    assert tasks.get("train", 0).metadata == {"c": 2, "a.b": 1, "d.e": 3}
    jsonl(file, {**data, "metadata": 5})
    with pytest.raises(
        InvalidTasks, match=r"qa\.jsonl, line 1: metadata: an object is needed; this is of the type int"
    ):
        TaskSet.from_jsonl(file, columns={"q": "prompt", "level": "metadata.d"}).splits()


def test_what_somebody_does_to_a_task_is_not_done_to_the_next_one() -> None:
    given: list[Any] = [Task(id="a", options={"rows": [1]}), {"id": "b", "options": {"rows": [2]}}]
    tasks = TaskSet(given)
    for index, rows_there in ((0, [1]), (1, [2])):
        tasks.get("train", index).options["rows"].append(9)
        assert tasks.get("train", index).options == {"rows": rows_there}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"q": "question"}, "columns: q: a task has no field 'question'"),
        ({"q": "limits.max_steps"}, "columns: q: a task has no field 'limits.max_steps'"),
        ({"q": "prompt", "r": "prompt"}, "columns: q: two columns are mapped to 'prompt'"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_at_once(columns: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidTasks) as refused:
        TaskSet.from_jsonl("tasks.jsonl", columns=columns)
    assert str(refused.value) == said


# -- what is refused


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"id": "b", "prompt": 3}, "tasks.jsonl, line 3: prompt: Input should be a valid string"),
        ({"id": "b", "seed": "3"}, "tasks.jsonl, line 3: seed: Input should be a valid integer"),
        ({"id": "b", "limits": {"max_steps": 0}}, "tasks.jsonl, line 3: limits.max_steps: Input should be greater"),
        ({"id": "b", "oracle": [{"tool": "x"}]}, "tasks.jsonl, line 3: oracle.0.tool_name: Field required"),
        ({"prompt": "x"}, "tasks.jsonl, line 3: it has no id. Name the column with the prompt, and"),
        ({"id": ""}, "tasks.jsonl, line 3: id: String should have at least 1 character"),
        ({"id": "b", "answer": "4"}, "tasks.jsonl, line 3: answer: a task has no such field. Put your own fields"),
        ({"id": "a"}, "tasks.jsonl, line 3: id: 'a' is the id of another task (tasks.jsonl, line 1)"),
        ({"id": "b", "metadata.x": 1}, "tasks.jsonl, line 3: metadata.x: a task has no such field"),
        ([1], "tasks.jsonl, line 3: a task must be an object; this is of the type list"),
        ('{"id": "b"\n', "tasks.jsonl, line 3: the line is not JSON: "),
        ('{"id": "b", "metadata": {"x": 1e999}}\n', "tasks.jsonl, line 3: the line is not JSON: "),
        ('{"id": "b", "metadata": {"x": "\\ud800"}}\n', "tasks.jsonl, line 3: the line is not JSON: "),
        ("\x00\n", "tasks.jsonl, line 3: the line is not JSON: "),
    ],
)
def test_a_bad_row_is_one_line_that_names_file_line_and_field(tmp_path: Path, line: Any, said: str) -> None:
    tasks = TaskSet.from_jsonl(jsonl(tmp_path / "tasks.jsonl", {"id": "a"}, "\n", line))
    with pytest.raises(InvalidTasks) as refused:
        tasks.splits()
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


@needs_datasets
def test_a_bad_row_of_a_table_is_named_too(tmp_path: Path) -> None:
    data = [{"id": "a", "options": "{}"}, {"id": "b", "options": "{"}]
    with pytest.raises(InvalidTasks, match=r"tasks\.parquet, row 1: options: the text is not JSON"):
        TaskSet.from_parquet(parquet(tmp_path / "tasks.parquet", data)).splits()
    with pytest.raises(InvalidTasks, match="tasks/dev, row 0: split: the row belongs to the split 'dev'"):
        TaskSet.from_dataset(dataset(tmp_path / "tasks", {"dev": rows("a", split="test")})).splits()
    with pytest.raises(InvalidTasks, match=r"task 1: metadata\.x: a value of type object has no JSON form"):
        TaskSet([{"id": "a"}, {"id": "b", "metadata": {"x": object()}}]).splits()
    with pytest.raises(InvalidTasks, match=r"task 0: metadata\.x: nan has no JSON form"):
        TaskSet([Task(id="a", metadata={"x": float("nan")})]).splits()


@needs_datasets
def test_a_source_that_is_not_there_or_is_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "tasks.parquet"
    other.write_text("no parquet")
    (tmp_path / "tasks.csv").write_text("id\n")
    for place, said in (
        (tmp_path / "no.jsonl", "there is no such file or folder"),
        (tmp_path / "tasks.csv", r"this is not a \.jsonl file, a \.parquet file or the folder of a dataset"),
        (other, "the tasks cannot be read"),
        (tmp_path, "the dataset cannot be read"),
    ):
        with pytest.raises(InvalidTasks, match=said):
            TaskSet.from_path(place).splits()
    with pytest.raises(InvalidTasks, match="the tasks cannot be read: No such file"):
        TaskSet.from_jsonl(tmp_path / "no.jsonl").splits()


@needs_datasets
@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["easy.jsonl", "hard.jsonl"], ["easy", "hard"]),
        (["test.jsonl", "train.jsonl", "dev.jsonl"], ["train", "dev", "test"]),
        (["data/train.jsonl", "dataset_infos.json", ".cache/x.jsonl"], ["train"]),
        (["tasks.json"], ["train"]),
        (["main/train-00000-of-00002.jsonl.gz", "main/train-00001-of-00002.jsonl.gz"], ["train"]),
        (["train.json.gz"], ["train"]),
        (["test.ndjson.gz", "train.ndjson.gz"], ["train", "test"]),
    ],
)
def test_the_splits_of_a_folder_are_those_of_its_files(tmp_path: Path, names: list[str], splits: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        line = json.dumps({"question": name}).encode()
        (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    tasks = TaskSet.from_path(tmp_path, columns={"question": "prompt"})
    assert tasks.splits() == splits
    assert len({task.id for task in tasks}) == len(tasks)
    assert all(tasks.find(task.id) == task for task in tasks)


@needs_datasets
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.jsonl", "test.json"], "its split 'test' (test.json) is of another format than train.jsonl"),
        (["train.csv", "test.jsonl"], "its split 'train' (train.csv) is of another format than test.jsonl"),
        (["train.jsonl", "data/dev-0-of-1.tsv.gz"], "its split 'dev' (data/dev-0-of-1.tsv.gz) is of another format"),
        (["train.parquet", "test/0.json.gz"], "its split 'test' (test/0.json.gz) is of another format than train"),
    ],
)
def test_a_split_in_another_format_is_refused_by_name(tmp_path: Path, names: list[str], said: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        jsonl(tmp_path / name, {"id": name})
    with pytest.raises(InvalidTasks, match=re.escape(said)):
        TaskSet.from_path(tmp_path).splits()


@needs_datasets
def test_data_in_another_format_that_names_no_other_split_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jsonl(tmp_path / "train.jsonl", {"id": "a"})
    for name in ("train.csv", "notes.json", "README.md", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    assert TaskSet.from_path(tmp_path).sizes() == {"train": 1}
    names = ("notes.json", "train.csv")
    assert caplog.messages == [f"{tmp_path}: {name} is left out, as train.jsonl is of another format" for name in names]


@needs_datasets
def test_a_folder_of_several_configurations_is_refused(tmp_path: Path) -> None:
    for name in ("main", "socratic"):
        (tmp_path / name).mkdir()
        jsonl(tmp_path / name / "train-00000-of-00001.jsonl", {"id": name})
    with pytest.raises(InvalidTasks, match=r"several folders with data \(main, socratic\); name one of them"):
        TaskSet.from_path(tmp_path).splits()
    assert TaskSet.from_path(tmp_path / "main").get("train", 0).id == "main"


def test_a_chat_that_begins_an_episode_is_a_prompt(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    file = jsonl(tmp_path / "a.jsonl", {"id": "a", "prompt": chat})
    assert TaskSet.from_path(file).get("train", 0).prompt == "Be brief.\n\nHow many?"
    for wrong in ([], [{"role": "assistant", "content": "x"}], [{"role": "user", "content": [{"type": "image"}]}]):
        with pytest.raises(InvalidTasks, match=r"line 1: prompt: a text is needed, or messages of the system"):
            TaskSet.from_path(jsonl(tmp_path / "b.jsonl", {"id": "a", "prompt": wrong})).splits()


@needs_datasets
def test_a_column_may_be_a_path_into_an_object(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2", "reward_model": {"style": "rule", "ground_truth": "4"}, "a.b": 1, "a": {"b": 2}}]
    columns = {"reward_model.ground_truth": "metadata.answer", "a.b": "metadata.flat"}
    for tasks in (
        TaskSet.from_jsonl(jsonl(tmp_path / "verl.jsonl", *rows), columns=columns),
        TaskSet.from_parquet(parquet(tmp_path / "verl.parquet", rows), columns=columns),
    ):
        metadata = tasks.get("train", 0).metadata
        assert (metadata["answer"], metadata["flat"], metadata["a"]) == ("4", 1, {"b": 2})
        assert metadata["reward_model"] == rows[0]["reward_model"]


@needs_datasets
@pytest.mark.parametrize("column", ["qestion", "meta.question", "question.text"])
def test_a_prompt_is_never_empty_because_its_column_is_misspelt(tmp_path: Path, column: str) -> None:
    rows = [{"question": "2+2", "meta": {"n": 1}}]
    said = f"prompt: there is no column '{column}'. The columns are question, meta"
    for tasks in (
        TaskSet.from_jsonl(jsonl(tmp_path / "qa.jsonl", *rows), columns={column: "prompt"}),
        TaskSet.from_parquet(parquet(tmp_path / "qa.parquet", rows), columns={column: "prompt"}),
    ):
        with pytest.raises(InvalidTasks) as refused:
            tasks.splits()
        assert said in str(refused.value)


@pytest.mark.parametrize("target", ["metadata.answer", "options.answer", "level", None])
@pytest.mark.parametrize("column", ["anser", "anser.text"])
def test_a_column_that_no_row_has_is_refused_by_name(tmp_path: Path, target: str | None, column: str) -> None:
    file = jsonl(tmp_path / "qa.jsonl", {"question": "2+2"}, {"question": "3+3", "answer": "6"})
    said = f"columns: {column}: no row has this column. The columns are question, answer"
    with pytest.raises(InvalidTasks, match=re.escape(said)) as refused:
        TaskSet.from_path(file, columns={"question": "prompt", column: target}).splits()
    assert str(refused.value).endswith(". Did you mean 'answer'?")
    empty = jsonl(tmp_path / "empty.jsonl")
    assert TaskSet.from_path(empty, columns={"question": "prompt", column: target}).splits() == []


@needs_datasets
def test_a_value_that_some_rows_lack_may_be_named(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "qa.jsonl", {"q": "2+2", "hint": "4"}, {"q": "3+3"})
    tasks = TaskSet.from_jsonl(file, columns={"q": "prompt", "hint": "metadata.hint"})
    assert [tasks.get("train", number).metadata for number in range(2)] == [{"hint": "4"}, {}]
    with pytest.raises(InvalidTasks, match="there is no column 'hnt'"):
        table = parquet(tmp_path / "qa.parquet", [{"q": "2+2", "hint": "4"}])
        TaskSet.from_parquet(table, columns={"q": "prompt", "hnt": "metadata.hint"}).splits()


@needs_datasets
def test_nan_in_a_table_is_a_value_that_is_not_given(tmp_path: Path) -> None:
    file = parquet(tmp_path / "qa.parquet", [{"q": "a", "level": 1.0}, {"q": "b", "level": float("nan")}])
    tasks = TaskSet.from_parquet(file, columns={"q": "prompt"})
    assert [tasks.get("train", number).metadata for number in range(2)] == [{"level": 1.0}, {}]


def test_rows_with_other_columns_say_how_to_name_them(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "quiz.json", {"question": "2+2?", "answer": "4"})
    with pytest.raises(InvalidTasks, match=r"its columns \(question, answer\) is which.*--columns prompt="):
        TaskSet.from_path(file).splits()
    task = TaskSet.from_path(file, columns=parse_columns("prompt=question, solution=answer")).get("train", 0)
    assert (task.id, task.prompt, task.metadata) == ("train-0", "2+2?", {"solution": "4"})
    assert parse_columns("options.level=level,id=name") == {"level": "options.level", "name": "id"}
    for wrong, said in (("question", "write FIELD=COLUMN"), ("prompt=a,id=a", "is named twice"), ("=a", "write FIELD")):
        with pytest.raises(InvalidTasks, match=said):
            parse_columns(wrong)
    with pytest.raises(InvalidTasks, match=r"has no field 'limits\.steps'"):
        TaskSet.from_path(file, columns=parse_columns("limits.steps=answer"))


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"id": "a"}\n' * 50)
    for content in (whole[:-9], b'{"id": "a"}'):
        (tmp_path / "a.jsonl.gz").write_bytes(content)
        with pytest.raises(InvalidTasks, match="the tasks cannot be read"):
            TaskSet.from_path(tmp_path / "a.jsonl.gz").splits()


def test_an_extension_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("mcpenv.extensions.datasets")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("mcpenv.extensions.__path__", [])
    with pytest.raises(InvalidTasks, match=r"^mcpenv\.extensions\.datasets: is needed to read these tasks"):
        TaskSet.from_parquet("tasks.parquet").splits()


@needs_datasets
def test_a_package_that_is_not_installed_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mcpenv.extensions.datasets.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Exception) as failed:
        TaskSet.from_parquet("tasks.parquet").splits()
    assert str(failed.value) == "pyarrow: is needed to read these tasks. Run pip install 'mcpenv[parquet]'"


def test_a_task_that_changed_in_its_file_is_not_given_out_as_the_one_that_was_read(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "tasks.jsonl", {"id": "a", "prompt": "pay 1"}, {"id": "b"})
    tasks = TaskSet.from_jsonl(file)
    assert tasks.get("train", 0).prompt == "pay 1"
    jsonl(file, {"id": "a", "prompt": "pay 2"}, {"id": "b"})
    with pytest.raises(InvalidTasks, match="line 1: the task has changed since it was first read"):
        tasks.get("train", 0)
    assert tasks.get("train", 1).id == "b"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + b'{"id": "a"}\r\n\r\n{"id": "b"}')
    assert [task.id for task in TaskSet.from_jsonl(file)] == ["a", "b"]


# -- when it is read


class Watched(list[dict[str, Any]]):
    """Rows that know how often they are gone through; the first one waits a moment for a second one to come."""

    def __init__(self, *given: dict[str, Any]) -> None:
        super().__init__(given)
        self.times = 0
        self.second = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.times += 1
        if self.times > 1:
            self.second.set()
        self.second.wait(0.3)
        return super().__iter__()


def test_nothing_is_read_before_it_is_wanted_and_then_once_for_all_threads() -> None:
    given = Watched(*rows("a", "b"))
    tasks = TaskSet(given)
    assert bool(tasks) and given.times == 0
    together = threading.Barrier(8)
    got: list[str] = []

    def ask() -> None:
        together.wait()
        got.append(tasks.get("train", 1).id)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["b"] * 8 and given.times == 1


def test_a_relative_path_is_relative_to_the_file_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    jsonl(home / "own.jsonl", {"id": "of the class"})
    jsonl(elsewhere / "own.jsonl", {"id": "of the folder"})
    name = f"relative_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}"
    (home / f"{name}.py").write_text(
        "from mcpenv.tasks import TaskSet\nclass World:\n    tasks = TaskSet.from_jsonl('own.jsonl')\n"
    )
    monkeypatch.syspath_prepend(home)
    monkeypatch.chdir(elsewhere)
    world = __import__(name).World
    assert [task.id for task in world.tasks] == ["of the class"]
    assert [task.id for task in TaskSet.from_jsonl("own.jsonl")] == ["of the folder"]


# -- generated


def add(rng: random.Random, index: int) -> dict[str, Any]:
    a, b = rng.randrange(1000), rng.randrange(1000)
    return {"prompt": f"{a}+{b}?", "metadata": {"answer": a + b, "names": list({"x", "y", "z"} & {"x"})}}


def test_a_generated_task_depends_on_seed_split_and_index_and_on_nothing_else() -> None:
    sizes = {"train": 1000, "test": 5}
    tasks, again = (TaskSet.generate(add, seed=1, sizes=sizes) for _ in range(2))
    last = tasks.get("train", 999)
    assert [*tasks][999] == last == again.get("train", 999)
    assert (last.id, last.split) == ("train-999", "train") and tasks.find("train-999") == last
    assert len({task.prompt for task in tasks}) > 990
    assert tasks.get("train", 0).prompt != tasks.get("test", 0).prompt
    other = TaskSet.generate(add, seed=2, sizes=sizes)
    assert other.get("train", 999).prompt != last.prompt
    assert tasks.version == again.version != other.version
    assert TaskSet.generate(add, seed=1, sizes={"train": 10}).get("train", 9) == tasks.get("train", 9)


@pytest.mark.parametrize("task_id", ["train-1000", "train--1", "train-01", "train-x", "train", "dev-0", "train-\u0661"])
def test_an_id_that_no_generated_task_has_is_refused(task_id: str) -> None:
    tasks = TaskSet.generate(add, seed=1, sizes={"train": 1000})
    with pytest.raises(NoSuchTask):
        tasks.find(task_id)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("tran-3", "train-3"), ("tset-3", "test-3"), ("tran-7", "train-7"), ("tset-7", None), ("train-9", None)],
)
def test_a_mistyped_id_is_refused_with_one_that_exists(typed: str, meant: str | None) -> None:
    tasks = TaskSet.generate(add, seed=1, sizes={"train": 9, "test": 5})
    for each in (tasks, TaskSet([*tasks])) if meant else (tasks,):
        with pytest.raises(NoSuchTask) as refused:
            each.find(typed)
        assert str(refused.value).endswith(f"). Did you mean {meant!r}?" if meant else "has 5)"), each


def test_an_exception_of_a_generator_has_its_line() -> None:
    def make(rng: random.Random, index: int) -> dict[str, str]:
        return {"prompt": str(1 / index)}

    line = make.__code__.co_firstlineno + 1
    said = rf"task 0 of 'train': the function raised ZeroDivisionError: .* \(.*test_task_set\.py:{line}\)$"
    with pytest.raises(InvalidTasks, match=said):
        TaskSet.generate(make, seed=1, sizes={"train": 2}).splits()


def test_a_generator_may_give_tasks_and_its_id_and_split_are_set() -> None:
    tasks = TaskSet.generate(lambda rng, index: Task(id="any", prompt=str(index)), seed=1, sizes={"dev": 2})
    assert tasks.get("dev", 1) == Task(id="dev-1", split="dev", prompt="1")
    with pytest.raises(InvalidTasks, match="task 0 of 'dev': a task must be an object; this is of the type str"):
        TaskSet.generate(lambda rng, index: "x", seed=1, sizes={"dev": 1}).splits()  # type: ignore[arg-type]
    with pytest.raises(InvalidTasks, match="task 0 of 'dev': answer: a task has no such field"):
        TaskSet.generate(lambda rng, index: {"answer": 1}, seed=1, sizes={"dev": 1}).splits()
    with pytest.raises(InvalidTasks, match="sizes: -1 tasks"):
        TaskSet.generate(add, seed=1, sizes={"dev": -1}).splits()


def add_of_split(rng: random.Random, index: int, split: str) -> dict[str, Any]:
    return {**add(rng, index), "family": split}


class _Generator:
    def make(self, rng: random.Random, index: int, split: str = "none") -> dict[str, Any]:
        return {"prompt": split}


def test_a_generator_of_three_arguments_gets_the_split_and_the_same_random_numbers() -> None:
    sizes = {"train": 3, "test": 3}
    tasks, of_split = TaskSet.generate(add, seed=1, sizes=sizes), TaskSet.generate(add_of_split, seed=1, sizes=sizes)
    assert [task.family for task in of_split] == ["train"] * 3 + ["test"] * 3
    assert [task.prompt for task in of_split] == [task.prompt for task in tasks]
    assert TaskSet.generate(_Generator().make, seed=1, sizes={"dev": 1}).get("dev", 0).prompt == "dev"


def test_the_default_of_a_third_parameter_is_kept_if_it_is_not_the_split() -> None:
    def make(rng: random.Random, index: int, size: int = 3) -> dict[str, Any]:
        return {"prompt": str(size)}

    assert TaskSet.generate(make, seed=1, sizes={"dev": 1}).get("dev", 0).prompt == "3"
    assert (
        TaskSet.generate(lambda *given: {"prompt": str(len(given))}, seed=1, sizes={"dev": 1}).get("dev", 0).prompt
        == "2"
    )


@pytest.mark.parametrize("make", [dict, lambda rng: {}, lambda rng, index, split, more: {}, 5])
def test_a_generator_of_other_arguments_is_refused(make: Any) -> None:
    with pytest.raises(
        InvalidTasks, match=r"make: (.*\) must take \(rng, index\) or|a function is needed|dict has no)"
    ):
        TaskSet.generate(make, seed=1, sizes={"dev": 1}).splits()


# -- licence and labels


def test_a_task_set_may_have_a_licence_and_words_for_its_source(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a"}\n')
    bare = TaskSet.from_jsonl(tmp_path / "tasks.jsonl")
    tasks = bare.with_licence("MIT", source="quizzes 1.2")
    assert tasks.origin() == {"licence": "MIT", "source": "quizzes 1.2", "version": bare.version}
    assert tasks.version == bare.version
    selected = tasks.select(split="train")
    assert selected.origin() == {**tasks.origin(), "version": f"{bare.version}/train"}
    assert selected.version == f"{bare.version}/train"
    assert bare.origin() == {"licence": None, "source": None, "version": bare.version}
    assert (tasks.source, bare.source) == ("quizzes 1.2", str(tmp_path / "tasks.jsonl"))
    assert bare.with_licence("MIT").source == bare.source


def test_labels_are_fields_of_a_task_and_are_written_only_if_they_are_set() -> None:
    labelled = Task(id="a", level=2, family="sums", tags=["two digits", "carry"])
    assert TaskSet([labelled.model_dump()]).find("a") == labelled
    assert Task.model_validate_json(labelled.model_dump_json()) == labelled
    assert not {"level", "family", "tags"} & Task(id="a").model_dump(mode="json").keys()
    assert {"level", "family", "tags"} <= Task.model_json_schema(mode="serialization")["properties"].keys()
    assert not {"level", "family", "tags"} & labelled.name.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("level", 0), ("level", "hard"), ("level", True)),
        *(("family", ""), ("family", "a\nb"), ("family", "  ")),
        *(("tags", [" "]), ("split", "a\nb"), ("split", " "), ("id", "a\nb"), ("id", "\x1b[2J"), ("id", "  ")),
        *(("tags", "x"), ("tags", [""]), ("tags", ["a", "b\u2028"]), ("tags", ["\x1b[2J"]), ("tags", ["a", "b", "a"])),
    ],
)
def test_labels_of_other_types_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidTasks, match=f"task 0: {field}"):
        TaskSet([{"id": "a", field: value}]).splits()


@pytest.mark.parametrize(("field", "value"), [("id", "a\nb"), ("id", " "), ("family", " "), ("tags", ["a\x07"])])
@pytest.mark.parametrize("kind", ["jsonl", "json", pytest.param("parquet", marks=needs_datasets)])
def test_labels_with_characters_that_cannot_be_printed_are_refused_in_files(
    tmp_path: Path, kind: str, field: str, value: Any
) -> None:
    row, file = {"id": "a", field: value}, tmp_path / f"tasks.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), file)
    else:
        file.write_text(json.dumps([row] if kind == "json" else row), encoding="utf-8")
    with pytest.raises(InvalidTasks, match=rf"{field}\b.* has "):
        TaskSet.from_path(file).splits()


def test_columns_of_other_data_are_labels_only_if_the_mapping_says_so(tmp_path: Path) -> None:
    row = {"question": "?", "level": "hard", "family": 3, "tags": "a, b", "steps": 2}
    (tmp_path / "quiz.jsonl").write_text(json.dumps(row) + "\n")
    task = TaskSet.from_jsonl(tmp_path / "quiz.jsonl", columns={"question": "prompt"}).get("train", 0)
    assert (task.level, task.family, task.tags) == (None, None, [])
    assert task.metadata == {"level": "hard", "family": 3, "tags": "a, b", "steps": 2}
    mapped = TaskSet.from_jsonl(
        tmp_path / "quiz.jsonl", columns={"question": "prompt", "steps": "level", "level": "family"}
    ).get("train", 0)
    assert (mapped.level, mapped.family) == (2, "hard")


def test_a_million_generated_tasks_cost_no_memory() -> None:
    tracemalloc.start()
    try:
        tasks = TaskSet.generate(add, seed=1, sizes={"train": 1_000_000})
        assert tasks.size("train") == 1_000_000
        for index in range(0, 1_000_000, 5_000):
            tasks.get("train", index)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


PROGRAM = """
import json, sys
sys.path[:0] = sys.argv[1:2]
from test_task_set import add
from mcpenv.tasks import TaskSet
tasks = TaskSet.generate(add, seed=1, sizes={"train": 50, "test": 5})
stored = TaskSet.from_jsonl(sys.argv[2])
print(tasks.version, stored.version)
for task in [*tasks, *stored]:
    print(task.model_dump_json(), task.stable_seed)
"""


@pytest.mark.slow
def test_every_process_has_the_same_tasks_seeds_and_versions(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "tasks.jsonl", FULL, *rows("a", "b"))

    def seen(hash_seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(file)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout

    assert seen("1") == seen("2") and len(seen("1").splitlines()) == 59
