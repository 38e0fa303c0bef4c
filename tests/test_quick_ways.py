"""The shorter ways of a step come to the same as the longer ones that they stand for."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import json
import math
import pickle
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from fastmcp.server import context as fastmcp_context
from fastmcp.server.context import Context, set_context
from fastmcp.server.dependencies import get_context
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.dataclasses import dataclass as pydantic_dataclass

from mcpenv import CallToolAction, MCPEnvironment
from mcpenv.quick_json import bytes_of, step_frame, step_reply, wrapping_reply
from mcpenv.recording.episodes import (
    QUICKLY_MADE,
    QUICKLY_MADE_TEXT,
    RecordedEnvironment,
    RecordedEpisode,
    _serializer,
)
from mcpenv.recording.quick_lines import quick_line
from mcpenv.replies import Answer, Replies
from mcpenv_client.errors import InvalidJSON, NotSerializable, OperationCancelled
from mcpenv_client.observations import CallToolObservation, Observation
from mcpenv_client.records import (
    WRAPS,
    Fork,
    LogEntry,
    Plane,
    Reward,
    StepRecord,
    ToolCall,
    ToolOutcome,
    Trajectory,
    call_made,
    outcome_made,
    reward_made,
    wraps,
)
from mcpenv_client.tasks import OracleCall, Task, TaskLimits
from mcpenv_client.tools import ToolErrorType, ToolFailure, ToolResult
from mcpenv_client.values import decode, encode, plain
from mcpenv_client.wire import around_observation, decode_frame, encode_reply, observation_data, step_data

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def encodable(value: Any) -> bool:
    try:
        encode(value)
    except NotSerializable:
        return False
    return True


@given(st.text() | st.integers() | st.booleans())
def test_a_wrapped_result_is_the_model_that_validation_makes(value: str | int | bool) -> None:
    quick = ToolResult.wrapping(value)
    slow = ToolResult.model_construct(
        content=[{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}],
        structured_content={"result": value},
        data=value,
        is_error=False,
        meta={"fastmcp": {"wrap_result": True}},
    )
    assert quick == slow
    assert quick.model_fields_set == slow.model_fields_set
    assert repr(quick) == repr(slow)
    assert quick.model_copy(update={"data": 1}).data == 1
    assert ToolResult.wrapping(value).meta is not quick.meta


def test_drafts_become_the_frozen_records() -> None:
    call = call_made("echo", {"a": 1}, 3, Plane.CONTROL, "me")
    assert call == ToolCall("echo", {"a": 1}, 3, Plane.CONTROL, "me")
    result = ToolResult.wrapping("x")
    outcome = outcome_made(result, None, "x", 0.5)
    assert outcome == ToolOutcome(result, None, "x", 0.5)
    reward = reward_made(1.0, {"part": 0.5})
    assert reward == Reward(1.0, {"part": 0.5})
    assert (type(call), type(outcome), type(reward)) == (ToolCall, ToolOutcome, Reward)
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.name = "y"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.value = "y"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.result = None  # type: ignore[misc]


@pytest.mark.parametrize("value", ["text", "", "\u00e9\n", 7, -(2**63), True, False])
def test_a_result_that_is_made_when_it_is_looked_at_is_the_one_that_is_made_at_once(value: Any) -> None:
    def late() -> ToolOutcome:
        return outcome_made(WRAPS, None, value, 0.5)

    soon = ToolOutcome(ToolResult.wrapping(value), None, value, 0.5)
    assert wraps(late()) and not wraps(soon)
    assert late() == soon and soon == late() and repr(late()) == repr(soon) and hash_of(late()) == hash_of(soon)
    for copied in (copy.copy(late()), copy.deepcopy(late()), pickle.loads(pickle.dumps(late())), replace(late())):
        assert copied == soon
        assert copied.result == soon.result
    outcome = late()
    assert outcome.result is outcome.result
    assert not wraps(outcome)
    assert dataclasses.asdict(late()) == dataclasses.asdict(soon)
    adapter = TypeAdapter(ToolOutcome)
    assert adapter.dump_json(late()) == adapter.dump_json(soon)
    assert adapter.validate_json(adapter.dump_json(late())).result == soon.result


def hash_of(outcome: ToolOutcome) -> str:
    """Unhashable, for its result is."""
    with pytest.raises(TypeError) as refused:
        hash(outcome)
    return str(refused.value)


def test_every_outcome_has_its_own_result() -> None:
    one, other = (outcome_made(WRAPS, None, "same", 0.5) for _ in range(2))
    assert one.result is not None and other.result is not None
    one.result.content.append({"type": "text", "text": "changed"})
    assert other.result == ToolResult.wrapping("same")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_a_reward_is_finite(value: Any) -> None:
    with pytest.raises(ValueError, match="finite"):
        Reward(value)
    with pytest.raises(ValueError, match="finite"):
        Reward(1.0, {"part": value})
    assert type(Reward(True).value) is float


@given(SCALARS, st.none() | st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.booleans(), SCALARS)
def test_a_steps_data_is_that_of_its_observation(
    value: Any, reward: float | None, terminated: bool, truncated: bool, info: Any
) -> None:
    result = ToolResult.model_construct(
        content=[], structured_content={"result": value}, data=value, is_error=False, meta=None
    )
    observation = CallToolObservation.model_construct(
        reward=reward, terminated=terminated, truncated=truncated, metadata={}, info={"a": info} if info else {},
        tool_name="echo", result=result, error=None,
    )  # fmt: skip
    data = step_data("echo", result, None, reward, terminated, truncated, {"a": info} if info else {})
    assert data == observation_data(observation)
    if encodable(data):
        assert json.loads(step_reply(data, "r")) == json.loads(encode_reply("observation", data, "r"))
    else:
        with pytest.raises(NotSerializable):
            step_reply(data, "r")


@given(
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.text(), SCALARS, max_size=2),
)
def test_what_a_reset_shows_is_recorded_and_answered_as_its_observation(
    reward: float | None, terminated: bool, truncated: bool, metadata: dict[str, Any]
) -> None:
    class Own(Observation):
        pass  # which goes the longer way

    class World(MCPEnvironment):
        shown: type[Observation] = Observation

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
            return self.shown(reward=reward, terminated=terminated, truncated=truncated, metadata=metadata)

    records, answers = [], []
    for shown in (Observation, Own):
        env = World()
        env.shown = shown
        answers.append(observation_data(env.reset(episode_id="one")))
        assert env.trajectory is not None
        records.append(env.trajectory.observation)
    assert records[0] == records[1]
    assert answers[0] == answers[1]


@given(
    st.text(),
    st.text() | st.integers() | st.booleans(),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.text(), SCALARS, max_size=2) | st.just({"return": None}) | st.just({"return": math.inf}),
    st.none() | st.text(),
)
def test_a_reply_that_is_written_without_a_result_is_the_one_that_is_written_with_it(
    name: str, value: Any, reward: float | None, terminated: bool, truncated: bool, info: Any, whose: str | None
) -> None:
    around = around_observation(reward, terminated, truncated, info)
    quick = wrapping_reply(name, value, around, whose)
    data = step_data(name, ToolResult.wrapping(value), None, reward, terminated, truncated, info)
    if quick is not None:
        assert quick == step_reply(data, whose)
        assert json.loads(quick) == json.loads(encode_reply("observation", data, whose))
        return
    odd = {"return": None}.items() <= info.items() or info.get("return") == math.inf
    assert odd or any(type(each) is int and abs(each) >= 2**63 for each in (value, *info.values()))


def test_a_reply_is_written_without_a_result_where_it_can_be() -> None:
    for value in ("text", '"quoted"', 7, True):
        assert wrapping_reply("name", value, around_observation(1.0, False, False, {"return": 1.0}), "r") is not None


NESTED = st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2)
FIELDS = st.sampled_from(["type", "data", "tool_name", "arguments", "request_id", "timeout_s", "x"])
VALUES = SCALARS | NESTED | st.sampled_from(["step", "call_tool", "reset", 1e300, 2**64, -(2**63) - 1, -0.0])
CALLS = st.fixed_dictionaries(
    {"type": st.just("call_tool"), "tool_name": st.text(), "arguments": st.dictionaries(st.text(), VALUES, max_size=3)},
    optional={"x": VALUES},
)
FRAMES = st.fixed_dictionaries(
    {"type": st.just("step"), "data": CALLS | st.dictionaries(FIELDS, VALUES, max_size=3)},
    optional={"request_id": st.text(max_size=3) | VALUES, "timeout_s": st.just(1.5) | VALUES, "x": VALUES},
)


@given(FRAMES | st.dictionaries(FIELDS, VALUES), st.sampled_from(["", " ", "x", "\ud800", ",", "}"]))
def test_a_frame_that_is_read_quickly_is_the_one_that_is_read_slowly(frame: Any, tail: str) -> None:
    text = json.dumps(frame) + tail
    quick = step_frame(text)
    if quick is not None:
        assert quick == decode_frame(text)
        assert [type(each) for each in quick.data["arguments"].values()] == [
            type(each) for each in decode_frame(text).data["arguments"].values()
        ]


def test_plain_steps_are_read_quickly() -> None:
    call = '{"type":"call_tool","tool_name":"t","arguments":{"a":1,"b":"x","c":null,"d":true}}'
    assert step_frame(f'{{"type":"step","data":{call}}}') is not None
    assert step_frame(f'{{"type":"step","data":{call},"request_id":"r"}}') is not None
    assert step_frame(f'{{"type":"step","data":{call},"request_id":"{"r" * 1000}"}}') is None


def test_a_sum_that_has_become_infinite_is_refused_and_not_null() -> None:
    with pytest.raises(NotSerializable, match="return"):
        step_reply(step_data("a", None, None, 1.0, False, False, {"return": math.inf}), None)


@pytest.mark.parametrize("number", ["1e999", "-1E400", "1" * 400, f"[{'0,' * 200}1e999]"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_number_that_is_too_large_for_a_float_is_refused_in_short_text_and_long(number: str, kind: Any) -> None:
    if number == "1" * 400:  # an integer has no such limit
        assert decode(kind(number)) == int(number)
        return
    with pytest.raises(ValueError, match="number out of range"):
        decode(kind(f'{{"a":{number}}}'))
    for arguments in (f'{{"a":{number}}}', f'{{"a":"text","b":[{number}]}}', f'{{"a":{{"b":{number}}}}}'):
        call = f'{{"type":"call_tool","tool_name":"t","arguments":{arguments}}}'
        for more in ("", ',"request_id":"r"', ',"timeout_s":1'):
            with pytest.raises(InvalidJSON, match="number out of range"):
                decode_frame(kind(f'{{"type":"step","data":{call}{more}}}'))
    with pytest.raises(InvalidJSON, match="number out of range"):
        decode_frame(kind(f'{{"type":"reset","data":{{"options":{number}}}}}'))


@given(JSON)
def test_what_a_request_says_has_its_bytes(value: Any) -> None:
    if encodable(value):
        assert decode(bytes_of(value)) == decode(encode(value))


NOT_FINITE = st.just(math.nan)
ARGUMENTS = st.dictionaries(st.text(), JSON | st.lists(NOT_FINITE, min_size=1) | NOT_FINITE, max_size=4)
LOGS = st.builds(LogEntry, st.text(), st.none() | st.text(), st.none() | st.floats(), st.none() | st.floats())


def recorded(steps: list[StepRecord], **options: Any) -> RecordedEpisode:
    return RecordedEpisode(Trajectory("e", options={"steps": [], **options}, steps=steps), RecordedEnvironment("E"))


@given(
    st.lists(
        st.builds(
            StepRecord,
            st.builds(ToolCall, st.text(), ARGUMENTS, st.integers(1), st.sampled_from(Plane), st.none() | st.text()),
            st.builds(
                ToolOutcome,
                st.none() | SCALARS.map(lambda value: wrapped("x", value)),
                st.none() | st.builds(ToolFailure, error_type=st.sampled_from(ToolErrorType), message=st.text()),
                st.just(object()),
            )
            | st.builds(
                outcome_made,
                st.just(WRAPS),
                st.none(),
                st.text() | st.integers(-(2**63), 2**63) | st.booleans(),
                st.just(0.5),
            ),
            st.none() | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Reward(value, {"a": 1.0})),
            st.booleans(), st.booleans(), st.none() | st.text(), st.just(1.5), st.lists(LOGS, max_size=2),
            st.none() | st.text(),
        ),
        max_size=3,
    )
)  # fmt: skip
def test_recorded_steps_are_those_of_the_serializer(steps: list[StepRecord]) -> None:
    episode = recorded(steps)
    line, quick = json.loads(episode.line()), episode.quick_line()
    if quick is not None:
        assert json.loads(quick) == line
    if "not_recorded" in line["extra"]:
        assert not encodable([to_plain_or_nan(step) for step in steps])
        return
    assert line == json.loads(_serializer().to_json(episode, fallback=plain))
    assert [step.call for step in RecordedEpisode.from_line(episode.line()).trajectory.steps] == [
        step.call for step in steps
    ]


REWARDS = st.none() | st.builds(Reward, st.floats(allow_nan=False, allow_infinity=False), st.just({"part": 0.5}))
OPTIONS = st.dictionaries(st.text(), JSON | NOT_FINITE | st.just((1, 2)) | st.just(b"a"), max_size=3)
NUMBERS = st.none() | st.integers()
TASKS = st.builds(
    Task,
    id=st.just("one"),
    prompt=st.text(),
    options=OPTIONS,
    seed=NUMBERS,
    limits=st.builds(TaskLimits, max_steps=st.none() | st.integers(1, 9), timeout_s=st.none() | st.just(0.5)),
    metadata=OPTIONS,
    oracle=st.none() | st.lists(st.builds(OracleCall, tool_name=st.just("say"), arguments=OPTIONS), max_size=2),
    verifier=st.none() | OPTIONS,
    reward_range=st.just((-1, 2.5)),
)


@given(
    st.builds(
        RecordedEpisode,
        st.builds(
            Trajectory, st.text(), NUMBERS, OPTIONS, st.booleans(), st.just([]), st.integers(0), st.floats(),
            st.booleans(), st.booleans(), st.none() | st.text(), st.just(1.5), st.none() | st.just(2.5),
            st.none() | TASKS, st.none() | st.dictionaries(st.text(), SCALARS, max_size=2), REWARDS, REWARDS,
            st.none() | st.text(), st.none() | st.just(Fork("other", 3)),
        ),
        st.builds(RecordedEnvironment, st.text(), st.none() | st.text()),
        tools=st.none() | st.text(),
        messages=st.none() | st.lists(OPTIONS, max_size=2),
        agent=st.none() | OPTIONS,
        extra=OPTIONS,
    )
)  # fmt: skip
def test_all_of_a_recorded_episode_is_as_the_serializer_writes_it(episode: RecordedEpisode) -> None:
    quick = quick_line(episode)
    line = json.loads(episode.line())
    if quick is not None:
        assert "not_recorded" not in line["extra"]
        assert quick.count(b"\n") == 1
        assert line == json.loads(quick) == json.loads(_serializer().to_json(episode, fallback=plain))
    elif "not_recorded" not in line["extra"]:
        assert line == json.loads(_serializer().to_json(episode, fallback=plain))
    read = RecordedEpisode.from_line(episode.line())
    assert read.trajectory.total_reward == max(-sys.float_info.max, min(sys.float_info.max, summed(episode)))


def summed(episode: RecordedEpisode) -> float:
    total = episode.trajectory.total_reward
    return 0.0 if math.isnan(total) else total


def test_the_quick_way_is_taken_by_an_episode_with_all_that_one_may_have() -> None:
    task = Task(id="a", options={"b": [1, 2.5]}, metadata={"why": (1, 2)}, oracle=[OracleCall(tool_name="say")])
    trajectory = Trajectory("e", 1, {"c": None}, task=task, observation={"done": False}, forked_from=Fork("d", 1))
    trajectory.verified = trajectory.end_reward = Reward(1.0, {"part": 1.0})
    episode = RecordedEpisode(trajectory, RecordedEnvironment("E", "1"), tools="f", messages=[{}], agent={"name": "g"})
    quick = quick_line(episode)
    assert quick is not None
    assert json.loads(quick) == json.loads(_serializer().to_json(episode))
    assert set(vars(task)) == set(json.loads(quick)["trajectory"]["task"])


@pydantic_dataclass
class Login:
    user: str
    token: str = Field(default="secret", exclude=True)


@dataclass
class Dice:
    sides: int
    _seed: int = 7

    def __post_init__(self) -> None:
        self.rolled = [self.sides]


class Point(BaseModel):
    x: int = Field(serialization_alias="across")


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize("odd", [Login("ann"), Dice(6), Point(x=1), NOON, Plane.AGENT, (1, 2), {3: 4}, b"a"], ids=repr)
def test_what_a_program_keeps_beside_an_episode_is_recorded_as_the_serializer_writes_it(odd: Any) -> None:
    there = {"odd": [odd]}
    task = Task(id="a", options=there, metadata=there, verifier=there)
    trajectory = Trajectory("e", options=there, task=task, observation=there)
    episode = RecordedEpisode(trajectory, RecordedEnvironment("E"), messages=[there], agent=there, extra=there)
    assert json.loads(episode.line()) == json.loads(_serializer().to_json(episode, fallback=plain))


def to_plain_or_nan(step: StepRecord) -> dict[str, Any]:
    data = dataclasses.asdict(replace(step, outcome=replace(step.outcome, result=None, error=None, value=None)))
    result, error = step.outcome.result, step.outcome.error
    return {**data, "result": result and vars(result), "error": error and error.message}


def wrapped(text: str, value: Any = None) -> ToolResult:
    return ToolResult.model_construct(
        content=[{"type": "text", "text": text}], structured_content=None, data=value, is_error=False, meta=None
    )


def step_with(arguments: dict[str, Any], *content: dict[str, Any]) -> StepRecord:
    result = ToolResult.model_construct(
        content=list(content), structured_content=None, data=None, is_error=False, meta=None
    )
    return StepRecord(ToolCall("echo", arguments, 1), ToolOutcome(result))


LONG = "x" * (QUICKLY_MADE_TEXT + 1)


@pytest.mark.parametrize(
    ("step", "times", "quick"),
    [
        (step_with({"text": LONG[1:], "count": 1, "ratio": 0.5}, {"type": "text", "text": LONG[1:]}), 1, True),
        (step_with({"text": LONG}), 1, False),
        (step_with({"texts": [LONG]}), 1, False),
        (step_with({}, {"type": "text", "text": ""}, {"type": "text", "text": LONG}), 1, False),
        (step_with({}, {"type": "image", "data": LONG, "mimeType": "image/png"}), 1, False),
        (step_with({}), QUICKLY_MADE, True),
        (step_with({}), QUICKLY_MADE + 1, False),
    ],
    ids=["short", "argument", "nested", "result", "image", "few", "many"],
)
def test_a_line_is_made_on_the_loop_only_if_all_in_it_is_short(step: StepRecord, times: int, quick: bool) -> None:
    episode = recorded([step] * times)
    assert episode.quick_line() == (episode.line() if quick else None)
    assert RecordedEpisode.from_line(episode.line()).trajectory.steps == [step] * times


def test_what_reads_like_no_number_in_a_result_is_text() -> None:
    episode = recorded([step_with({"what": "NaN"}, {"type": "text", "text": "Infinity"})])
    assert episode.quick_line() == episode.line()
    assert RecordedEpisode.from_line(episode.line()).trajectory == episode.trajectory


# -- the context of tools that ask for none


class Looks(MCPEnvironment):
    """Tools that look for FastMCP's context."""

    def __init__(self) -> None:
        @self.tool
        async def keeps(value: int) -> int:
            """Keep a value until the next reset, another until the end of the call."""
            context = get_context()
            before = await context.get_state("kept")
            await context.set_state("kept", value)
            await context.set_state("mine", value, serializable=False)
            assert await context.get_state("mine") == value
            await context.info(f"kept {value}")
            return -1 if before is None else int(before)

        @self.tool
        async def has_own() -> bool:
            """Whether something is left of the last call."""
            return await get_context().get_state("mine") is not None


def given_by(env: MCPEnvironment, name: str, arguments: dict[str, Any]) -> Any:
    seen = env.call_tool(name, arguments)
    assert isinstance(seen, CallToolObservation) and seen.result is not None, seen
    return seen.result.data


def test_tools_find_the_context_of_their_own_step() -> None:
    one, other = Looks(), Looks()
    for env in (one, other):
        env.reset()
        assert given_by(env, "keeps", {"value": 1}) == -1
        assert given_by(env, "keeps", {"value": 2}) == 1
        assert given_by(env, "has_own", {}) is False
        assert [entry.message for entry in env._execution.episode.trajectory.steps[1].logs] == ["kept 2"]  # type: ignore[union-attr]
    one.reset()
    assert given_by(one, "keeps", {"value": 3}) == -1
    assert given_by(other, "keeps", {"value": 3}) == 2


def test_after_a_step_there_is_no_context() -> None:
    env = Looks()
    env.reset()
    env.step(CallToolAction(tool_name="has_own", arguments={}))
    with pytest.raises(RuntimeError):
        get_context()


class Hands(MCPEnvironment):
    """A tool that hands the context it found to a thread."""

    def __init__(self) -> None:
        @self.tool
        async def hands() -> str:
            """Have another thread log."""
            context, loop = get_context(), asyncio.get_running_loop()

            def work() -> str:
                asyncio.run_coroutine_threadsafe(context.info("from a thread"), loop).result(30)
                return context.session_id

            return await loop.run_in_executor(None, work)

        @self.tool
        async def enters() -> str:
            """Use what FastMCP's constructor makes."""
            async with get_context() as context:
                return f"{context.fastmcp.name} {context.request_id}"


def test_a_context_that_was_found_is_that_of_its_step_wherever_it_goes() -> None:
    env = Hands()
    env.reset()
    given_by(env, "hands", {})
    trajectory = env._execution.episode.trajectory
    assert trajectory is not None
    assert [entry.message for entry in trajectory.steps[0].logs] == ["from a thread"]
    assert given_by(env, "enters", {}) == "mcpenv step-2"


def test_fastmcps_context_variable_is_where_it_was() -> None:
    """`tool_call` sets it; when it moves, this fails first."""
    assert fastmcp_context._current_context.get() is None
    env = Looks()
    with set_context(Context(env.mcp)) as context:
        assert fastmcp_context._current_context.get() is context


# -- once, in the caller's task


async def _never() -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_run_in_the_callers_task_is_answered_once_to_all_who_ask() -> None:
    async def main() -> None:
        replies, runs = Replies(), 0
        go, task = asyncio.Event(), asyncio.current_task()
        assert task is not None

        async def run() -> Answer:
            nonlocal runs
            runs += 1
            await go.wait()
            return Answer("done")

        others = [asyncio.ensure_future(replies.once("r", b"x", run)) for _ in range(2)]
        first = asyncio.ensure_future(_here(replies, "r", run))
        await asyncio.sleep(0)
        assert replies.running("r") is not None
        others[0].cancel()
        go.set()
        assert (await first).text == (await others[1]).text == "done"
        assert (await _here(replies, "r", run)).text == "done"
        assert runs == 1

    asyncio.run(main())


async def _here(replies: Replies, request_id: str, run: Any) -> Answer:
    task = asyncio.current_task()
    assert task is not None
    return await replies.once_here(request_id, b"x", run, task, lambda: Answer("cancelled"))


def test_a_run_that_is_cancelled_by_its_id_has_that_answer_and_the_task_goes_on() -> None:
    async def main() -> None:
        replies = Replies()

        async def conversation() -> list[str]:
            said = [(await _here(replies, "r", _never)).text]
            await asyncio.sleep(0)  # nothing is left of the cancelling
            return [*said, (await _here(replies, "r", _never)).text]

        task = asyncio.ensure_future(conversation())
        await asyncio.sleep(0)
        running = replies.running("r")
        assert running is not None and running.cancel()
        assert await task == ["cancelled", "cancelled"]
        assert task.cancelling() == 0

    asyncio.run(main())


def test_two_cancels_are_as_one_and_leave_nothing_even_if_the_run_minds_neither() -> None:
    async def stubborn() -> Answer:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return Answer("done")

    async def main(run: Any, said: str, between: int) -> None:
        replies = Replies()
        task = asyncio.ensure_future(_here(replies, "r", run))
        await asyncio.sleep(0)
        running = replies.running("r")
        assert running is not None and running.cancel()
        for _ in range(between):
            await asyncio.sleep(0)
        assert running.cancel()
        assert (await task).text == said
        assert task.cancelling() == 0

    asyncio.run(main(_never, "cancelled", 0))
    asyncio.run(main(stubborn, "done", 3))


def test_a_run_whose_task_is_cancelled_by_others_is_no_answer() -> None:
    async def main() -> None:
        replies = Replies()
        task = asyncio.ensure_future(_here(replies, "r", _never))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(replies.once("r", b"x", _never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OperationCancelled):
            await waiting
        assert replies.running("r") is None

    asyncio.run(main())
