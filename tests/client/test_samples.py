"""Samples: turns of a model put together as far as each prompt continues the tokens before it."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv_client.samples import Gap, Sample, SampledTurn, samples_of, turns_of
from mcpenv_client.samples.formats import atropos, nemo, slime, trl, verl
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens, TurnUsage
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.status import Status, StatusCode
from mcpenv_client.types.tasks import Task

SYSTEM = [1, 2, 3]
FIRST = SampledTurn([*SYSTEM, 10], [20, 21], [-0.1, -0.2], [1], 0)
SECOND = SampledTurn([*SYSTEM, 10, 20, 21, 30, 31], [22], [-0.3], [2, 3], 1)
THIRD = SampledTurn([*SYSTEM, 10, 20, 21, 30, 31, 22, 32], [23, 24], [-0.4, -0.5], [], 2)


def step(number: int, reward: float | None, status: Status | None = None) -> StepRecord:
    outcome = ToolOutcome.returned("so", 0.1)
    given = None if reward is None else Reward(reward, {"part": reward})
    made = StepRecord(ToolCall("add", {}, number), outcome, given)
    if status is not None:
        made.status = status
    return made


def episode(*steps: StepRecord, **options: Any) -> Trajectory:
    task = Task(id="t1", level=2, family="counting")
    total = sum(each.reward.value for each in steps if each.reward is not None)
    return Trajectory("e1", 7, steps=list(steps), terminated=True, task=task, total_reward=total, **options)


def test_turns_that_continue_each_other_are_one_sample() -> None:
    played = episode(step(1, 0.25), step(2, None), step(3, 0.5))
    (sample,) = samples_of([FIRST, SECOND, THIRD], played, environment="count")
    assert sample.tokens == [*SYSTEM, 10, 20, 21, 30, 31, 22, 32, 23, 24]
    assert sample.mask == [0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1]
    assert [value for value, kept in zip(sample.logprobs or [], sample.mask, strict=True) if kept] == [
        -0.1,
        -0.2,
        -0.3,
        -0.4,
        -0.5,
    ]
    assert [(span.start, span.end, span.turn, span.reward, span.steps) for span in sample.spans] == [
        (4, 6, 0, 0.25, (1,)),
        (8, 9, 1, 0.5, (2, 3)),
        (10, 12, 2, None, ()),
    ]
    assert (sample.reward, sample.parts, sample.status, sample.usable) == (0.75, {"part": 0.75}, "completed", True)
    assert (sample.task, sample.seed, sample.labels) == ("t1", 7, {"level": 2, "family": "counting"})
    assert (sample.environment, sample.episode_id, sample.tree) == ("count", "e1", "e1")
    assert (sample.piece, sample.pieces, sample.gap) == (0, 1, None)
    assert sample.prompt_ids == [*SYSTEM, 10]
    assert sample.completion_ids == sample.tokens[4:]
    assert sample.completion_mask == sample.mask[4:]


BROKEN = {
    "compacted: most of the conversation is gone": ([*SYSTEM, 99], "prompt", 3),
    "tokenised anew: the model's text in other tokens": ([*SYSTEM, 10, 20, 77, 30, 31, 22, 32], "model", 5),
    "thoughts dropped: the answer lacks its first token": ([*SYSTEM, 10, 21, 30, 31, 22, 32], "model", 4),
    "rewritten: another result of the tool": ([*SYSTEM, 10, 20, 21, 30, 66, 22, 32], "answer", 7),
    "cut: the prompt ends within the earlier tokens": ([*SYSTEM, 10, 20, 21, 30], "answer", 7),
    "another system message": ([5, 2, 3, 10, 20, 21, 30, 31, 22, 32], "prompt", 0),
}


@pytest.mark.parametrize("way", BROKEN)
def test_a_prompt_that_is_not_what_came_before_begins_a_sample_and_says_where(way: str) -> None:
    prompt, place, at = BROKEN[way]
    whole, broken = samples_of([FIRST, SECOND, SampledTurn(prompt, [23], [-0.4], [], 2)], episode(step(1, 1.0)))
    assert whole.tokens == [*SECOND.prompt_ids, *SECOND.ids]
    assert broken.tokens == [*prompt, 23]
    assert sum(broken.mask) == 1  # what an earlier sample trains on is not trained on twice
    assert broken.gap == Gap(2, at, 9, place)  # type: ignore[arg-type]
    assert f"repeats {at} of 9 tokens" in str(broken.gap)
    assert [(each.piece, each.pieces, each.reward) for each in (whole, broken)] == [(0, 2, 1.0), (1, 2, 1.0)]


def test_parts_are_told_by_turn_and_of_the_end() -> None:
    two = StepRecord(ToolCall("add", {}, 3), ToolOutcome.returned("so", 0.1), Reward(0.5, {"part": 0.25, "cost": -0.5}))
    ended = Reward(1.0, {"verified": 1.0})
    played = episode(step(1, None), step(2, 0.25), two, end_reward=ended)
    played.total_reward = 1.75
    (sample,) = samples_of([FIRST, SECOND, THIRD], played)
    assert [dict(span.parts) for span in sample.spans] == [{}, {"part": 0.5, "cost": -0.5}, {}]
    assert (sample.reward, sample.end_reward, dict(sample.end_parts)) == (1.75, 1.0, {"verified": 1.0})
    assert dict(sample.parts) == {"part": 0.5, "cost": -0.5, "verified": 1.0}
    plain = json.loads(json.dumps(sample.to_plain()))
    assert (plain["spans"][1]["parts"], plain["end_parts"]) == ({"part": 0.5, "cost": -0.5}, {"verified": 1.0})
    told = {"end_reward": 1.0, "end_parts": {"verified": 1.0}, "turn_rewards": [None, 0.75, None]}
    for row in (slime(sample)["metadata"], nemo(sample)["extra_env_info"], trl(sample)["about"]):
        assert {name: row[name] for name in told} == told
        assert row["turn_parts"] == [{}, {"part": 0.5, "cost": -0.5}, {}]


def test_a_conversation_beside_the_first_is_a_sample_of_its_own() -> None:
    beside = [SampledTurn([8, 8], [40], [-1.0], [], 1), SampledTurn([8, 8, 40, 9], [41], [-1.0], [], 3)]
    first, other = samples_of([FIRST, beside[0], SECOND, beside[1], THIRD])
    assert first.tokens == [*THIRD.prompt_ids, *THIRD.ids]
    assert other.tokens == [8, 8, 40, 9, 41]
    assert other.mask == [0, 0, 1, 0, 1]


def test_log_probabilities_that_are_missing_in_one_turn_are_missing_in_its_sample() -> None:
    (sample,) = samples_of([FIRST, SampledTurn(SECOND.prompt_ids, SECOND.ids, None, [], 1)])
    assert sample.logprobs is None
    (sample,) = samples_of([FIRST, SampledTurn(SECOND.prompt_ids, SECOND.ids, [None], [], 1)])
    assert sample.logprobs is None


@given(st.lists(st.tuples(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3), min_size=1)), min_size=1))
def test_each_token_of_the_model_is_trained_on_once(parts: list[tuple[list[int], list[int]]]) -> None:
    turns, before = list[SampledTurn](), list[int]()
    dice = random.Random(len(parts))
    for index, (between, ids) in enumerate(parts):
        prompt = [*before[: dice.randrange(len(before) + 1)], *between] if dice.random() < 0.3 else [*before, *between]
        turns.append(SampledTurn(prompt, ids, None, [], index))
        before = [*prompt, *ids]
    samples = samples_of(turns)
    spans = sorted((span.turn, tuple(each.tokens[span.start : span.end])) for each in samples for span in each.spans)
    assert spans == [(index, tuple(turn.ids)) for index, turn in enumerate(turns)]
    for sample in samples:
        assert sum(sample.mask) == sum(span.end - span.start for span in sample.spans)
        for before_span, after in pairwise(sample.spans):
            assert before_span.end <= after.start
        for span in sample.spans:  # what the model was given is what stands before its answer
            assert sample.tokens[: span.start] == list(turns[span.turn].prompt_ids)


def test_an_episode_with_a_step_that_the_world_failed_is_not_usable() -> None:
    failed = Status(StatusCode.ENV_ERROR, None, True)
    (sample,) = samples_of([FIRST], episode(step(1, 0.5), step(2, None, failed)))
    assert (sample.reward, sample.usable) == (0.5, False)
    (sample,) = samples_of([FIRST], episode(step(1, None)))
    assert (sample.reward, sample.usable) == (None, False)
    lost = Trajectory("e1", steps=[step(1, 1.0)], total_reward=1.0, ended_at=1.0, reason="disconnected")
    (sample,) = samples_of([FIRST], lost)
    assert (sample.reward, sample.status, sample.usable) == (None, "transport_lost", False)


def turn(prompt: list[int] | None, ids: list[int] | None, **options: Any) -> ModelTurn:
    made = ModelTurn("chat_completions", "/v1", {}, status=200, answer={}, prompt_ids=prompt)
    made.tokens = [] if ids is None else [TurnTokens(ids)]
    for name, value in options.items():
        setattr(made, name, value)
    return made


def test_recorded_turns_have_the_tokens_and_steps_of_their_calls() -> None:
    calls = [TurnCall("a", "add", {}, 2), TurnCall("b", "Bash", {}), TurnCall("c", "add", {}, 3)]
    found, left_out = turns_of([turn([1], [2], calls=calls), turn([1, 2, 3], [4])])
    assert [(each.prompt_ids, each.ids, each.steps, each.index) for each in found] == [
        ([1], [2], [2, 3], 0),
        ([1, 2, 3], [4], [], 1),
    ]
    assert left_out == []


def test_recorded_turns_keep_the_version_of_the_weights() -> None:
    tokenized = turn(None, None, request={"messages": []}, policy_version=4)
    recorded = [turn([1], [2], policy_version=3), turn([1], [2]), tokenized]
    found, _ = turns_of(recorded, lambda request, answer: ([1], [2]), "tiny")
    assert [each.policy_version for each in found] == [3, None, 4]
    (sample,) = samples_of(found[:1])
    assert sample.to_plain()["policy_version"] == 3


LEFT_OUT = {
    "no token ids of the answer": turn([1], None),
    "no token ids of the prompt": turn(None, [2]),
    "no token ids of the prompt and the answer": turn(None, None),
    "gave 1 of the 5 tokens of the answer": turn([1], [2], usage=TurnUsage(1, 5)),
    "gave 1 of the 9 tokens of the prompt": turn([1], [2], usage=TurnUsage(9, 1)),
    "asked for 2 answers at once": turn([1], None, tokens=[TurnTokens([1]), TurnTokens([2])]),
    "gave no whole answer (status 500)": turn([1], [2], status=500),
    "gave no whole answer (cut by the agent)": turn([1], [2], cut="agent"),
    "gave no whole answer (cut by the endpoint)": turn(None, None, cut="endpoint", answer=None, status=None),
}


LEFT_OUT["gave 2 log-probabilities for 1 tokens"] = turn([1], None, tokens=[TurnTokens([2], [-1.0, -2.0])])


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_turns_whose_tokens_are_not_known_are_left_out_by_name(reason: str) -> None:
    found, (left_out,) = turns_of([LEFT_OUT[reason]])
    assert found == []
    assert reason in left_out.reason


def test_a_tokenizer_stands_in_for_an_endpoint_and_is_named() -> None:
    asked = {"messages": [{"role": "user", "content": "go"}]}
    made = turn(None, None, request=asked, answer={"choices": []})
    seen: list[Any] = []

    def tokenize(request: dict[str, Any], answer: dict[str, Any]) -> tuple[list[int], list[int]]:
        seen.append((request, answer))
        return [1, 2], [3]

    (found,), left_out = turns_of([made], tokenize, "tiny")
    assert (found.prompt_ids, found.ids, found.tokenizer, left_out) == ([1, 2], [3], "tiny", [])
    assert seen == [(asked, {"choices": []})]
    (sample,) = samples_of([found])
    assert sample.tokenizer == "tiny"

    def refuses(request: dict[str, Any], answer: dict[str, Any]) -> tuple[list[int], list[int]]:
        raise LookupError("roles must alternate")

    _, (refused,) = turns_of([made], refuses, "tiny")
    assert "the chat template failed: LookupError: roles must alternate" in refused.reason
    _, (missing,) = turns_of([turn(None, None, api="generate_content")], tokenize, "tiny")
    assert "cannot express a conversation of generate_content" in missing.reason


def test_a_sample_without_spans_has_one_for_each_answer_of_the_model() -> None:
    sample = Sample([1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 1, 0], reward=1.0)
    assert [(span.start, span.end, span.turn) for span in sample.spans] == [(1, 3, 0), (4, 5, 1)]
    assert [each["token_ids"] for each in nemo(sample)["message_log"]] == [[1], [2, 3], [4], [5], [6]]
    assert Sample([1], [0]).spans == []


@pytest.mark.parametrize(
    ("lists", "problem"),
    [(([1, 2], [1]), "one entry for each token"), (([1], [2]), "not 0 or 1"), (([1], [1], []), "one entry")],
)
def test_a_sample_checks_its_lists(lists: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Sample(*lists)


def test_rows_of_trainers_have_the_same_tokens() -> None:
    (sample,) = samples_of([FIRST, SECOND], episode(step(1, 0.25)), group=3, advantage=1.5)
    row = verl(sample)
    assert row["prompt_ids"] + row["response_ids"] == sample.tokens
    assert (row["response_mask"], row["reward_score"], row["uid"]) == ([1, 1, 0, 0, 1], 0.25, 3)
    assert row["extra_fields"]["turn_scores"] == [0.25, None]
    assert (row["num_turns"], row["extra_fields"]["level"], row["extra_fields"]["advantage"]) == (2, 2, 1.5)
    row = slime(sample)
    assert (row["tokens"], row["response_length"], row["loss_mask"]) == (sample.tokens, 5, [1, 1, 0, 0, 1])
    assert (row["status"], row["remove_sample"], row["reward"]) == ("completed", False, 0.25)
    row = nemo(sample)
    assert [each["role"] for each in row["message_log"]] == ["user", "assistant", "user", "assistant"]
    assert [token for each in row["message_log"] for token in each["token_ids"]] == sample.tokens
    assert [each.get("generation_logprobs") for each in row["message_log"]] == [None, [-0.1, -0.2], None, [-0.3]]
    row = trl(sample)
    assert (row["prompt_ids"], row["completion_ids"]) == (sample.prompt_ids, sample.completion_ids)
    assert row["env_mask"] == [1, 1, 0, 0, 1]
    row = atropos([sample])
    assert row["masks"] == [[-100, -100, -100, -100, 20, 21, -100, -100, 22]]
    assert (row["scores"], row["inference_logprobs"]) == ([0.25], [[1, 1, 1, 1, -0.1, -0.2, 1, 1, -0.3]])


def test_an_unusable_sample_is_removed_in_slime_and_weighs_nothing_in_nemo() -> None:
    (sample,) = samples_of([FIRST], episode(step(1, None)))
    assert (slime(sample)["remove_sample"], slime(sample)["status"]) == (True, "failed")
    assert nemo(sample)["loss_multiplier"] == 0.0
