"""The records that an episode holds are small, and nobody who looks at one can tell."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from mcpenv import MCPEnvironment
from mcpenv.context import EnvironmentContext
from mcpenv.kept_step import KeptStep, has_result, kept, parts
from mcpenv_client.actions import CallToolAction
from mcpenv_client.errors import ExecutionError
from mcpenv_client.records import (
    WRAPS,
    LogEntry,
    Plane,
    Reward,
    StepRecord,
    ToolCall,
    ToolOutcome,
    Trajectory,
    call_made,
    outcome_made,
)
from mcpenv_client.tools import ToolErrorType, ToolFailure, ToolResult

FAILURES = st.builds(ToolFailure, error_type=st.sampled_from(ToolErrorType), message=st.text())
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
OUTCOMES = st.builds(
    ToolOutcome, st.none() | st.text().map(ToolResult.wrapping), st.none() | FAILURES, st.none() | st.text(), NUMBERS
) | st.builds(outcome_made, st.just(WRAPS), st.none(), st.text() | st.integers() | st.booleans(), NUMBERS)
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
    OUTCOMES,
    st.none() | st.builds(Reward, NUMBERS, st.dictionaries(st.text(), NUMBERS)),
    st.booleans(),
    st.booleans(),
    st.none() | st.text(),
    NUMBERS,
    st.lists(st.builds(LogEntry, st.just("info"), st.none() | st.text()), max_size=2),
    st.none() | st.text(),
)


@given(RECORDS)
def test_a_kept_record_is_equal_in_every_way(record: StepRecord) -> None:
    assert isinstance(kept(record), StepRecord)
    assert type(kept(record)) is KeptStep
    assert kept(record) == record
    assert record == kept(record)
    assert kept(record) == kept(record)
    assert kept(record) != object()
    assert repr(kept(record)) == repr(record)
    assert dataclasses.asdict(kept(record)) == dataclasses.asdict(record)
    assert dataclasses.replace(kept(record), reason="x") == dataclasses.replace(record, reason="x")
    assert kept(record).to_plain() == record.to_plain()
    adapter = TypeAdapter(StepRecord)
    assert adapter.dump_json(kept(record)) == adapter.dump_json(record)
    assert has_result(kept(record)) == has_result(record) == (record.outcome.result is not None)
    assert parts(kept(record)) == parts(record) == parts(whole(kept(record)))
    assert kept(record).done == record.done
    assert (kept(record).started_at, kept(record).fault) == (record.started_at, record.fault)


def whole(record: StepRecord) -> StepRecord:
    assert record.call is record.call
    assert type(record) is StepRecord
    return record


@pytest.mark.parametrize("name", ["call", "outcome", "reward", "logs"])
@given(RECORDS)
def test_any_of_its_fields_can_be_the_first_that_is_looked_at(name: str, record: StepRecord) -> None:
    held = kept(record)
    assert getattr(held, name) == getattr(record, name)
    assert getattr(held, name) is getattr(held, name)
    assert type(held) is StepRecord
    assert held == record


@given(RECORDS)
def test_it_can_be_copied_and_sent(record: StepRecord) -> None:
    copies: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
    for made in copies:
        assert made(kept(record)) == record
        assert type(made(kept(record))) is StepRecord
        assert made([kept(record)]) == [record]
    trajectory = Trajectory("e", steps=[kept(record)])
    assert trajectory == Trajectory("e", steps=[record])
    assert trajectory.to_plain() == Trajectory("e", steps=[record]).to_plain()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("call", ToolCall("other", {}, 9)),
        ("outcome", ToolOutcome(value=1)),
        ("reward", Reward(7.0)),
        ("reward", None),
        ("logs", [LogEntry("info", "late")]),
        ("reason", "other"),
        ("truncated", True),
    ],
)
def test_its_fields_can_be_set(name: str, value: Any) -> None:
    record = StepRecord(ToolCall("a", {}, 1), outcome_made(WRAPS, None, 1, 0.5), Reward(1.0))
    held = kept(record)
    setattr(held, name, value)
    assert held == dataclasses.replace(record, **{name: value})
    assert record.reward == Reward(1.0)


def test_what_happens_to_the_record_that_was_kept_is_not_seen() -> None:
    record = StepRecord(ToolCall("a", {}, 1), outcome_made(WRAPS, None, "x", 0.5), Reward(1.0), logs=[])
    held = kept(record)
    record.reward, record.terminated = None, True
    assert record.outcome.result is not None
    record.outcome.result.content.clear()
    assert held.reward == Reward(1.0)
    assert not held.terminated
    assert held.outcome.result == ToolResult.wrapping("x")


def test_threads_that_look_at_once_see_the_same() -> None:
    record = StepRecord(ToolCall("a", {"b": 1}, 1), outcome_made(WRAPS, None, "x", 0.5), Reward(1.0))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong: list[str] = []
    try:
        held = [kept(record) for _ in range(2_000)]
        ready = threading.Barrier(4)

        def look() -> None:
            ready.wait()
            wrong.extend(repr(each) for each in held if (each.reward, each.call) != (record.reward, record.call))
            wrong.extend(repr(each) for each in held if each != record)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_a_step_is_at_most_three_objects_for_the_collector() -> None:
    record = StepRecord(
        call_made("add", {"by": 1}, 1, Plane.CONTROL, None), outcome_made(WRAPS, None, 7, 0.5), Reward(1.0, {"a": 1.0})
    )
    held = [kept(record) for _ in range(100)]
    gc.collect()  # which passes over tuples and dictionaries of plain values from now on
    tracked = [each for step in held for each in gc.get_referents(step) if gc.is_tracked(each)]
    assert len(tracked) <= 2 * len(held)


class World(MCPEnvironment):
    def __init__(self) -> None:
        @self.tool
        async def say(text: str, ctx: EnvironmentContext | None = None) -> str:
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
        return Reward(0.5, {"part": 0.25})


def test_an_episodes_records_are_what_the_steps_were() -> None:
    env = World()
    env.reset()
    answers = [
        env.step(CallToolAction(tool_name=name, arguments={"text": text}))
        for name, text in (("say", "a"), ("pair", "b"), ("say", "fail"), ("none", "c"))
    ]
    with pytest.raises(ExecutionError):
        env.step(CallToolAction(tool_name="say", arguments={"text": "unfair"}))
    assert env.trajectory is not None
    assert [type(each) for each in env.trajectory.steps] == [KeptStep] * 5
    said = json.loads(json.dumps(env.trajectory.to_plain()))["steps"]
    assert [each["call"]["arguments"]["text"] for each in said] == ["a", "b", "fail", "c", "unfair"]
    assert said[0]["outcome"]["result"]["data"] == "a"
    assert [each.call.step for each in env.trajectory.steps] == [1, 2, 3, 4, 5]
    assert [each.reward for each in env.trajectory.steps] == [Reward(0.5, {"part": 0.25})] * 4 + [None]
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


def test_it_is_written_by_orjson_as_a_dataclass() -> None:
    env = World()
    env.reset()
    env.step(CallToolAction(tool_name="say", arguments={"text": "a"}))
    assert env.trajectory is not None
    text = orjson.dumps(env.trajectory, default=lambda model: model.model_dump())
    assert json.loads(text)["steps"][0]["call"]["arguments"] == {"text": "a"}


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Explained(Reward):
    why: str = ""

    def __init__(self, value: float, why: str) -> None:
        Reward.__init__(self, value)
        object.__setattr__(self, "why", why)


def test_a_reward_of_the_authors_own_class_stays_what_it_is() -> None:
    record = StepRecord(ToolCall("a", {}, 1), outcome_made(WRAPS, None, "x", 0.5), Explained(1.0, "because"))
    assert kept(record).reward == record.reward
    assert getattr(kept(record).reward, "why", None) == "because"


def test_what_a_tool_logs_when_it_has_returned_is_in_the_record() -> None:
    record = StepRecord(ToolCall("a", {}, 1), outcome_made(WRAPS, None, "x", 0.5))
    held = kept(record)
    record.logs.append(LogEntry("info", "late"))
    assert held.logs == [LogEntry("info", "late")]


def test_another_can_be_made_of_it_by_its_class() -> None:
    record = StepRecord(ToolCall("a", {"b": 1}, 1), outcome_made(WRAPS, None, "x", 0.5), Reward(1.0))
    held = kept(record)
    others: dict[str, Any] = {"call": record.call, "outcome": record.outcome, "reward": record.reward, "logs": []}
    assert dataclasses.replace(held, **others) == record
    assert type(kept(record))(record.call, record.outcome, record.reward) == record
    assert type(kept(record)).from_plain(record.to_plain()) == StepRecord.from_plain(record.to_plain())


def test_what_one_thread_sets_stays_when_another_looks_first() -> None:
    record = StepRecord(ToolCall("a", {"b": 1}, 1), outcome_made(WRAPS, None, "x", 0.5), Reward(1.0))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    held = [kept(record) for _ in range(10_000)]
    seen: list[Reward | None] = []
    ready = threading.Barrier(2)

    def look() -> None:
        ready.wait()
        seen.extend(each.reward for each in held)

    thread = threading.Thread(target=look)
    try:
        thread.start()
        ready.wait()
        for each in held:
            each.reward = Reward(2.0)
    finally:
        thread.join()
        sys.setswitchinterval(before)
    assert len(seen) == len(held)
    assert all(each.reward == Reward(2.0) for each in held)
