"""`mcpenv trajectories export --tree`: common prefixes are written once, and small readers join them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client import Task, Tool
from mcpenv_client.samples.trees import whole_rows
from mcpenv_client.scores import advantages, branch_advantages
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens
from mcpenv_client.types.records import Fork, Reward, StepRecord, ToolCall, ToolOutcome, Trajectory

BRANCHES, STEPS, TURN = 64, 20, 60
"""Branches, steps of the parent before them, and tokens of a turn with its result."""


def turns_of(first: int, steps: int, seen: list[int], name: int) -> list[ModelTurn]:
    """Turns of a model: each reads what was before it, and writes a call."""
    turns = []
    for number in range(first, first + steps):
        wrote = [1000 + name * 97 + number * 13 + place for place in range(TURN // 2)]
        made = ModelTurn("chat_completions", "/v1", {"messages": []}, status=200, answer={}, prompt_ids=[*seen])
        made.calls, made.tokens = [TurnCall(None, "add", {}, number)], [TurnTokens(wrote, [-0.5] * len(wrote))]
        turns.append(made)
        seen += [*wrote, *(5000 + name * 31 + number * 7 + place for place in range(TURN // 2))]
    return turns


def step(number: int, name: int) -> StepRecord:
    text = f"the result of step {number} of {name}, which is as long as results are: {'x' * 60}"
    return StepRecord(ToolCall("add", {"by": number, "of": name}, number), ToolOutcome.returned(text, 0.1), Reward(0.0))


def tree(folder: Path) -> list[RecordedEpisode]:
    """Record a parent, 64 branches of its 20th step, and two branches of one of them."""
    episodes: list[RecordedEpisode] = []

    def add(
        name: str, number: int, origin: Fork | None, before: list[StepRecord], seen: list[int], own: int, worth: float
    ) -> list[StepRecord]:
        turns = turns_of(len(before) + 1, own, seen, number)
        steps = [*before, *(step(len(before) + 1 + at, number) for at in range(own))]
        steps[-1].reward = Reward(worth)
        about: dict[str, Any] = {"terminated": True, "total_reward": worth, "forked_from": origin, "seed": 3}
        about["observation"] = {"metadata": {"prompt": "Add well."}}
        trajectory = Trajectory(name, task=Task(id="t1"), steps=[*steps], **about)
        episodes.append(RecordedEpisode(trajectory, RecordedEnvironment("adds"), model_turns=turns))
        return steps

    seen = [*range(200)]
    whole = add("parent", 0, None, [], seen, STEPS + 4, 0.5)
    prompt = [*range(200)]
    turns_of(1, STEPS, prompt, 0)
    for branch in range(BRANCHES):
        own = [*prompt]
        add(f"branch-{branch}", 1 + branch, Fork("parent", STEPS), whole[:STEPS], own, 2, branch / BRANCHES)
        if branch == 5:
            deeper = [*own[: len(prompt) + TURN]]
    for leaf in range(2):
        before = episodes[6].trajectory.steps[: STEPS + 1]
        add(f"leaf-{leaf}", 200 + leaf, Fork("branch-5", STEPS + 1), before, [*deeper], 1, float(leaf))
    with Recorder(folder) as recorder:
        name = recorder.tools.keep([Tool(name="add", description="Add.", input_schema={"type": "object"})])
        for each in episodes:
            each.tools = name
            recorder.write(each)
    return episodes


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree") / "record"
    tree(folder)
    return folder


def written(record: Path, form: str, *options: str) -> Path:
    out = record.parent / f"{form}{''.join(options)}"
    assert execute(["trajectories", "export", str(record), "--format", form, "--out", str(out), *options]) == 0
    return out


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def slime_reader(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read shortened rows in slime's fields as a trainer's own loader would."""
    whole: list[dict[str, Any]] = []
    for line in lines:
        prefix = line.pop("prefix", None)
        if prefix:
            line["tokens"] = whole[prefix["of"]]["tokens"][: prefix["tokens"]] + line["tokens"]
        assert len(line["loss_mask"]) == line["response_length"] <= len(line["tokens"])
        whole.append(line)
    return whole


def verl_reader(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for verl's: the tokens of an earlier row are its prompt and its response."""
    whole: list[dict[str, Any]] = []
    for line in lines:
        prefix = line.pop("prefix", None)
        if prefix:
            of = whole[prefix["of"]]
            line["prompt_ids"] = (of["prompt_ids"] + of["response_ids"])[: prefix["tokens"]] + line["prompt_ids"]
        assert len(line["response_ids"]) == len(line["response_mask"]) == len(line["response_logprobs"])
        whole.append(line)
    return whole


@pytest.mark.parametrize(("form", "reader"), [("verl", verl_reader), ("slime", slime_reader)])
def test_rows_of_a_tree_have_the_prefix_once_and_other_readers_read_the_flat_rows(
    record: Path, form: str, reader: Any
) -> None:
    flat, shared = written(record, form), written(record, form, "--tree")
    assert reader(rows(shared)) == rows(flat) == [*whole_rows(rows(shared), form)]
    assert len(rows(shared)) == BRANCHES + 3
    sizes = flat.stat().st_size, shared.stat().st_size
    assert sizes[1] * 3 < sizes[0], sizes
    prompts = [len(row["prefix"] and row["prompt_ids" if form == "verl" else "tokens"]) for row in rows(shared)[1:]]
    assert max(prompts) <= 2 * TURN  # all of a branch's tokens before its own are in the row of its parent


@pytest.mark.parametrize("form", ["tokens", "trl"])
def test_whole_rows_are_the_flat_rows(record: Path, form: str) -> None:
    assert [*whole_rows(rows(written(record, form, "--tree")), form)] == rows(written(record, form))


def test_the_groups_and_advantages_are_those_of_the_branching_points(record: Path) -> None:
    found = rows(written(record, "verl"))
    groups = [row["uid"] for row in found]
    assert groups == [0, *([1] * BRANCHES), 2, 2]
    values = [row["extra_fields"]["advantage"] for row in found]
    assert values[0] is None and values[-2:] == [-1.0, 1.0]
    assert sum(values[1 : BRANCHES + 1]) == pytest.approx(0.0)
    assert [row["extra_fields"]["tree_step"] for row in found] == [None, *([STEPS] * BRANCHES), STEPS + 1, STEPS + 1]


def test_advantages_of_branches_are_over_their_own_point(tmp_path: Path) -> None:
    trajectories = [each.trajectory for each in tree(tmp_path / "record")]
    parent, *branches = branch_advantages(trajectories)
    assert parent == 0.0 and branches[-2:] == [-1.0, 1.0]
    assert branches[:BRANCHES] == advantages(trajectories[1 : BRANCHES + 1])


def test_a_selection_without_the_parent_has_the_prefix_in_the_first_branch(record: Path) -> None:
    shared = rows(written(record, "slime", "--tree", "--where", 'not task = "t2" and return < 0.1'))
    assert "prefix" not in shared[0] and {row["prefix"]["of"] for row in shared[1:-1]} == {0}
    assert slime_reader(shared) == rows(written(record, "slime", "--where", 'not task = "t2" and return < 0.1'))


def test_chats_have_common_messages_once(record: Path) -> None:
    flat, shared = written(record, "chat-openai"), written(record, "chat-openai", "--tree")
    whole: list[dict[str, Any]] = []
    for row in rows(shared):
        prefix = row.pop("prefix", None)
        if prefix:
            of = whole[prefix["of"]]
            row["messages"] = of["messages"][: prefix["messages"]] + row["messages"]
            row["tools"] = of["tools"] if prefix["tools"] else row["tools"]
        whole.append(row)
    assert whole == rows(flat)
    assert shared.stat().st_size * 2 < flat.stat().st_size
    about = [(row["metadata"]["parent_id"], row["metadata"]["parent_step"]) for row in whole]
    assert about == [(None, None), *([("parent", STEPS)] * BRANCHES), *([("branch-5", STEPS + 1)] * 2)]


def test_a_table_has_common_messages_and_steps_once(record: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    flat, shared = (pq.read_table(written(record, "parquet", *options)).to_pylist() for options in ((), ("--tree",)))
    for number, (row, own) in enumerate(zip(flat, shared, strict=True)):
        of, messages, steps = (own.pop(name) for name in ("prefix_of", "prefix_messages", "prefix_steps"))
        if of is not None:
            assert of < number
            own["messages"] = json.dumps(json.loads(flat[of]["messages"])[:messages] + json.loads(own["messages"]))
            own["steps"] = flat[of]["steps"][:steps] + own["steps"]
            own["tools"] = own["tools"] or flat[of]["tools"]
        assert own == {**row, "messages": own["messages"]} and json.loads(own["messages"]) == json.loads(
            row["messages"]
        )


def test_a_format_without_shared_prefixes_is_named(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "export", str(record), "--format", "atif", "--tree"]) == 2
    said = capsys.readouterr().err
    assert "atif has no shared prefixes; leave --tree out, or use one of chat-openai, parquet, slime" in said
