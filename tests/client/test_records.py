"""Records: an outcome that keeps the value of its tool alone cannot be told from one that keeps the result."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mcpenv import MCPEnvironment
from mcpenv_client.errors import ExecutionError
from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.records import LogEntry, Plane, Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tools import ToolErrorType, ToolFailure, ToolResult, wrapped_data

VALUES = st.text() | st.integers(-(2**63), 2**63) | st.booleans()
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
FAILURES = st.builds(ToolFailure, error_type=st.sampled_from(ToolErrorType), message=st.text())
RECORDS = st.builds(
    StepRecord,
    st.builds(
        ToolCall,
        st.text(),
        st.dictionaries(st.text(), st.integers()),
        st.integers(1),
        st.sampled_from(Plane),
        st.none() | st.text(),
    ),
    st.builds(ToolOutcome, st.none() | st.text().map(ToolResult.wrapping), st.none() | FAILURES, st.none(), NUMBERS)
    | st.builds(ToolOutcome.returned, VALUES, NUMBERS),
    st.none() | st.builds(Reward, NUMBERS, st.dictionaries(st.text(), NUMBERS)),
    st.booleans(),
    st.booleans(),
    st.none() | st.text(),
    NUMBERS,
    st.lists(st.builds(LogEntry, st.just("info"), st.none() | st.text()), max_size=2),
    st.none() | st.text(),
)
COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    dataclasses.replace,
    lambda each: pickle.loads(pickle.dumps(each)),
]


@given(VALUES)
def test_a_wrapped_result_is_the_model_that_validation_makes(value: str | int | bool) -> None:
    wrapped = ToolResult.wrapping(value)
    validated = ToolResult(
        content=[{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}],
        structured_content={"result": value},
        data=value,
        is_error=False,
        meta={"fastmcp": {"wrap_result": True}},
    )
    assert wrapped == validated
    assert wrapped.model_fields_set == validated.model_fields_set
    assert repr(wrapped) == repr(validated)
    assert ToolResult.wrapping(value).meta is not wrapped.meta


@given(VALUES)
def test_an_outcome_of_a_value_is_the_outcome_of_its_result(value: str | int | bool) -> None:
    kept = ToolOutcome.returned(value, 0.5)
    whole = ToolOutcome(ToolResult.wrapping(value), None, value, 0.5)
    assert kept == whole and whole == kept and repr(kept) == repr(whole)
    for made in COPIES:
        assert made(kept) == whole and made(kept).result == whole.result
    assert dataclasses.replace(kept, result=None) == ToolOutcome(None, None, value, 0.5)
    assert dataclasses.asdict(kept) == dataclasses.asdict(whole)
    adapter = TypeAdapter(ToolOutcome)
    assert adapter.dump_json(kept) == adapter.dump_json(whole)
    assert adapter.validate_json(adapter.dump_json(kept)).result == whole.result


def test_outcomes_calls_and_rewards_are_frozen() -> None:
    kept: Any = ToolOutcome.returned("x", 0.5)
    for record, name in (
        (kept, "result"),
        (kept, "value"),
        (ToolCall("a", {}, 1), "name"),
        (Reward(1.0), "value"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)
    with pytest.raises(AttributeError, match="'ToolOutcome' object has no attribute 'results'"):
        kept.results
    assert not hasattr(ToolOutcome(), "results")


def test_every_result_is_a_new_one() -> None:
    kept = ToolOutcome.returned("same", 0.5)
    result = kept.result
    assert result is not None
    result.content.append({"type": "text", "text": "changed"})
    assert kept.result == ToolResult.wrapping("same")


@given(RECORDS)
def test_a_record_of_a_step_can_be_copied_sent_and_stored(record: StepRecord) -> None:
    for made in COPIES:
        assert made(record) == record
    assert record != object()
    assert TypeAdapter(StepRecord).dump_json(record) == TypeAdapter(StepRecord).dump_json(copy.deepcopy(record))
    assert dataclasses.asdict(record)["outcome"] == dataclasses.asdict(record.outcome)
    read = StepRecord.from_plain(record.to_plain())
    assert read.to_plain() == record.to_plain()
    assert (read.call, read.reward, read.outcome.result) == (record.call, record.reward, record.outcome.result)
    trajectory = Trajectory("e", steps=[record])
    assert trajectory.to_plain()["steps"] == [record.to_plain()]


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Explained(Reward):
    why: str = ""

    def __init__(self, value: float, why: str) -> None:
        Reward.__init__(self, value)
        object.__setattr__(self, "why", why)


class World(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        async def say(text: str) -> str:
            """Say it."""
            if text == "fail":
                raise ValueError("no")
            return text

        @self.tool
        async def pair(text: str) -> dict[str, str]:
            """Say it twice."""
            return {"one": text, "other": text}

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        pass

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        if call.arguments["text"] == "unfair":
            raise RuntimeError("cannot say")
        return Explained(0.5, "because") if call.name == "pair" else Reward(0.5, {"part": 0.25})


def test_the_records_of_an_episode_are_what_its_steps_were() -> None:
    env = World()
    env.reset()
    answers = [
        env.step(CallToolAction(tool_name=name, arguments={"text": text}))
        for name, text in (("say", "a"), ("pair", "b"), ("say", "fail"), ("none", "c"))
    ]
    with pytest.raises(ExecutionError):
        env.step(CallToolAction(tool_name="say", arguments={"text": "unfair"}))
    assert env.trajectory is not None
    said = json.loads(json.dumps(env.trajectory.to_plain()))["steps"]
    assert [each["call"]["arguments"]["text"] for each in said] == ["a", "b", "fail", "c", "unfair"]
    assert said[0]["outcome"]["result"]["data"] == "a"
    assert [each.call.step for each in env.trajectory.steps] == [1, 2, 3, 4, 5]
    rewards = [each.reward for each in env.trajectory.steps]
    assert rewards == [Reward(0.5, {"part": 0.25}), rewards[1], *[Reward(0.5, {"part": 0.25})] * 2, None]
    assert getattr(rewards[1], "why", None) == "because"
    assert env.trajectory.steps[4].fault == "EXECUTION_ERROR"
    for answer, record in zip(answers, env.trajectory.steps, strict=False):
        assert (getattr(answer, "result", None), getattr(answer, "error", None)) == (
            record.outcome.result,
            record.outcome.error,
        )
        assert record.outcome.duration_s > 0 or record.outcome.error is not None


def test_who_changes_an_observation_does_not_change_the_record() -> None:
    env = World()
    env.reset()
    answer = env.step(CallToolAction(tool_name="say", arguments={"text": "a"}))
    result = getattr(answer, "result", None)
    assert isinstance(result, ToolResult)
    result.content.clear()
    assert env.trajectory is not None
    assert env.trajectory.steps[0].outcome.result == ToolResult.wrapping("a")


def test_a_kept_step_of_a_small_tool_takes_at_most_a_kilobyte() -> None:
    env, steps = World(), 2_000
    env.reset()
    for _ in range(100):
        env.call_tool("say", {"text": "a"})
    env.reset()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(steps):
            env.call_tool("say", {"text": f"number {number}"})
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert env.trajectory is not None and len(env.trajectory.steps) == steps
    assert (after - before) / steps <= 1_000


@pytest.mark.parametrize("value", ["text", 7, True])
def test_a_result_made_without_validation_is_as_a_validated_one(value: str | int | bool) -> None:
    made = ToolResult.wrapping(value)
    assert made == ToolResult.model_validate(made.model_dump()) == ToolResult.model_construct(**wrapped_data(value))
    assert made.model_fields_set == set(ToolResult.model_fields)
    assert pickle.loads(pickle.dumps(made)) == made.model_copy(deep=True) == made
