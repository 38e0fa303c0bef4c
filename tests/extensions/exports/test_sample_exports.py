"""`mcpenv trajectories export` in the formats of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.status import Status, StatusCode
from mcpenv_client.types.tasks import Task


def answer(prompt: list[int], ids: list[int] | None, *steps: int) -> ModelTurn:
    calls = [TurnCall(None, "add", {}, number) for number in steps]
    made = ModelTurn("chat_completions", "/v1", {"messages": []}, status=200, answer={}, calls=calls)
    made.prompt_ids, made.tokens = prompt, [] if ids is None else [TurnTokens(ids, [-0.5] * len(ids))]
    return made


def step(number: int, reward: float | None) -> StepRecord:
    given = None if reward is None else Reward(reward)
    return StepRecord(ToolCall("add", {}, number), ToolOutcome.returned("so", 0.1), given)


def episode(name: str, reward: float | None, *turns: ModelTurn, **options: Any) -> RecordedEpisode:
    task = Task(id="t1", split="train", family="counting")
    total = {"total_reward": reward or 0.0, "seed": 3, "terminated": True, **options}
    trajectory = Trajectory(name, task=task, steps=[step(1, reward)], **total)
    return RecordedEpisode(trajectory, RecordedEnvironment("count"), model_turns=list(turns) or None)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    first = answer([1, 2], [10], 1)
    with Recorder(folder) as recorder:
        recorder.write(episode("good", 1.0, first, answer([1, 2, 10, 5], [11])))
        recorder.write(episode("bad", 0.0, first, answer([1, 9], [12])))  # it changed what the model had seen
        recorder.write(episode("other", 0.5, first, seed=4))
        recorder.write(episode("failed", None, first, status=Status(StatusCode.ENV_ERROR)))
        recorder.write(episode("without", 0.25))
        recorder.write(episode("no ids", 0.25, answer([1, 2], None)))
        odd = answer([1, 2], [10, 11], 1)
        odd.tokens[0].logprobs = [-0.5]
        recorder.write(episode("odd", 0.5, odd, seed=5))
    return folder


def exported(record: Path, form: str, *options: str) -> list[dict[str, Any]]:
    out = record.parent / f"{form}.jsonl"
    assert execute(["trajectories", "export", str(record), "--format", form, "--out", str(out), *options]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_samples_have_tokens_rewards_and_advantages(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = exported(record, "tokens")
    assert [(row["episode_id"], row["piece"], row["pieces"]) for row in rows] == [
        ("good", 0, 1),
        ("bad", 0, 2),
        ("bad", 1, 2),
        ("other", 0, 1),
        ("failed", 0, 1),
        ("no ids", 0, 1),
        ("odd", 0, 1),
    ]
    good, bad, rest, other, failed, no_ids, odd = rows
    assert (good["tokens"], good["mask"]) == ([1, 2, 10, 5, 11], [0, 0, 1, 0, 1])
    assert [span["reward"] for span in good["spans"]] == [1.0, None]
    assert rest["gap"]["text"] == "turn 1: the prompt repeats 1 of 3 tokens, and differs in its first prompt"
    # The group: good, bad, without and no ids; nothing scored the failed one.
    assert good["group"] == bad["group"] == failed["group"] != other["group"]
    assert good["advantage"] > 0 > bad["advantage"] == rest["advantage"]
    assert (failed["reward"], failed["advantage"], failed["usable"]) == (None, None, False)
    assert (other["advantage"], other["environment"], other["labels"]) == (None, "count", {"family": "counting"})
    assert (no_ids["tokens"], no_ids["usable"], no_ids["reward"]) == ([], False, 0.25)
    assert no_ids["left_out"] == [{"turn": 0, "reason": "the endpoint gave no token ids of the answer"}]
    assert odd["left_out"] == [{"turn": 0, "reason": "the endpoint gave 1 log-probabilities for 2 tokens"}]
    said = capsys.readouterr().err
    assert "1 sample not usable" in said
    assert "3 episodes without tokens of a model" in said
    assert "1 turn left out: the endpoint gave no token ids of the answer" in said
    assert "7 episodes" in said and "7 lines of samples" in said


def test_episodes_whose_calls_are_joined_to_no_step_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder(tmp_path / "record") as recorder:
        for name in ("a", "b"):
            other = answer([1, 2], [10])
            other.calls = [TurnCall(None, "subtract", {})]
            recorder.write(episode(name, 1.0, other))
        recorder.write(episode("c", 1.0, answer([1, 2], [10], 1)))
    assert len(exported(tmp_path / "record", "tokens")) == 3
    reason = "none of the 1 calls (subtract) has the name of a tool of the steps (add)"
    assert f"2 episodes whose turns have no rewards of their own: {reason}" in capsys.readouterr().err


def test_an_episode_with_a_step_that_failed_by_the_world_does_not_count_in_its_group(tmp_path: Path) -> None:
    full = episode("full", 0.0, answer([1, 2], [12], 1))
    full.trajectory.steps[0].status = Status(StatusCode.ENV_ERROR)
    with Recorder(tmp_path / "record") as recorder:
        for each in (episode("a", 1.0, answer([1, 2], [10], 1)), episode("b", 1.0, answer([1, 2], [11], 1)), full):
            recorder.write(each)
    found = [(row["usable"], row["advantage"]) for row in exported(tmp_path / "record", "tokens")]
    assert found == [(True, 0.0), (True, 0.0), (False, None)]


def test_the_only_scored_episode_of_several_has_the_advantage_0(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record") as recorder:
        recorder.write(episode("a", 1.0, answer([1, 2], [10], 1)))
        recorder.write(episode("b", None, answer([1, 2], [11], 1), status=Status(StatusCode.ENV_ERROR)))
    assert [row["advantage"] for row in exported(tmp_path / "record", "tokens")] == [0.0, None]


@pytest.mark.parametrize(
    ("form", "field"),
    [("verl", "reward_score"), ("slime", "reward"), ("nemo", "total_reward"), ("trl", "episode_reward")],
)
def test_rows_for_trainers_have_usable_samples_only(record: Path, form: str, field: str) -> None:
    assert [row[field] for row in exported(record, form)] == [1.0, 0.0, 0.0, 0.5]


def test_the_samples_of_an_episode_are_one_rollout_of_slime(record: Path) -> None:
    good, bad, rest, other = (row["rollout_id"] for row in exported(record, "slime"))
    assert bad == rest and len({good, bad, other}) == 3


def test_a_line_for_atropos_is_a_group(record: Path) -> None:
    (group,) = exported(record, "atropos")  # the group of one episode has nothing to compare
    assert group["scores"] == [1.0, 0.0]  # an episode of two samples counts once
    assert group["tokens"][0] == [1, 2, 10, 5, 11]
    assert group["masks"][0] == [-100, -100, 10, -100, 11]


@pytest.mark.parametrize(
    "selection",
    [("--id", "bad"), ("--min-return", "0.5"), ("--limit", "1"), ("--where", "seed > 3"), ("--task", "t1")],
)
def test_a_selection_chooses_rows_and_changes_none(record: Path, selection: tuple[str, str]) -> None:
    everything = exported(record, "tokens")
    rows = exported(record, "tokens", *selection)
    assert rows and all(row in everything for row in rows)


def test_a_group_for_atropos_has_its_selected_episodes(record: Path) -> None:
    with Recorder(record) as recorder:
        recorder.write(episode("best", 2.0, answer([1, 2], [13], 1)))
    (group,) = exported(record, "atropos", "--min-return", "0.75")
    assert sorted(group["scores"]) == [1.0, 2.0]  # and not the others, on which no line waits


def test_a_tokenizer_that_is_not_there_is_named(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["trajectories", "export", str(record), "--format", "tokens", "--tokenizer", "no-such-tokenizer"]
    assert execute(arguments) == 2
    assert "transformers" in (said := capsys.readouterr().err) or "no-such-tokenizer" in said


def test_a_tokenizer_is_refused_where_there_are_no_tokens(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "export", str(record), "--format", "chat-openai", "--tokenizer", "tiny"]) == 2
    assert "chat-openai has no tokens; leave --tokenizer out" in capsys.readouterr().err
