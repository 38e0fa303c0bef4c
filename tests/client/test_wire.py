"""The wire protocol, without I/O: the state table is total, and whatever arrives is a frame or an error of the wire."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import strategies as st
from strategies import Rich, given, json_values, objects, texts

from mcpenv_client import (
    AnyObservation,
    CallToolAction,
    CallToolObservation,
    EpisodeDone,
    EpisodeState,
    InvalidJSON,
    InvalidMessage,
    NotSerializable,
    SessionLost,
    ToolErrorType,
    ToolFailure,
    ToolResult,
    UnknownType,
    WireError,
)
from mcpenv_client.errors import from_wire
from mcpenv_client.types.values import MAX_DEPTH, encode, to_plain
from mcpenv_client.wire.protocol import (
    MAX_REQUEST_ID,
    TRANSITIONS,
    ActionTypes,
    Event,
    FrameType,
    decode_frame,
    decode_reply,
    encode_action,
    encode_frame,
    encode_reply,
    next_state,
    observation_data,
    parse_observation,
    request_id_of,
    timeout_of,
)

# -- the state table

NEW, RUNNING, DONE, CLOSED = EpisodeState


@pytest.mark.parametrize(("state", "event"), list(itertools.product(EpisodeState, Event)))
def test_every_pair_moves_or_is_refused_by_name(state: EpisodeState, event: Event) -> None:
    if event in TRANSITIONS[state]:
        assert next_state(state, event) is TRANSITIONS[state][event]
        return
    with pytest.raises(WireError) as refused:
        next_state(state, event)
    assert f"{event.value} is not possible in state {state.value}" in str(refused.value)


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([Event.RESET, Event.STEP, Event.STEP, Event.END], DONE),
        ([Event.RESET, Event.END, Event.RESET], RUNNING),
        ([Event.RESET, Event.RESET], RUNNING),
        ([Event.RESET_FAILED], NEW),
        ([Event.RESET, Event.RESET_FAILED], NEW),
        ([Event.RESET, Event.END, Event.CLOSE, Event.CLOSE], CLOSED),
    ],
)
def test_an_episode_goes_through_its_states(events: list[Event], end: EpisodeState) -> None:
    state = NEW
    for event in events:
        state = next_state(state, event)
    assert state is end


def test_done_is_left_only_by_a_reset() -> None:
    for event in set(Event) - {Event.RESET, Event.RESET_FAILED, Event.SNAPSHOT, Event.CLOSE}:
        with pytest.raises(EpisodeDone):
            next_state(DONE, event)


def test_nothing_leaves_closed() -> None:
    for event in set(Event) - {Event.CLOSE}:
        with pytest.raises(SessionLost):
            next_state(CLOSED, event)


# -- frames of a client


@given(
    st.sampled_from(FrameType),
    objects,
    st.none() | st.text(min_size=1, max_size=MAX_REQUEST_ID),
    st.none() | st.floats(1e-3, 1e6),
)
def test_a_frame_crosses(
    kind: FrameType, data: dict[str, Any], request_id: str | None, timeout_s: float | None
) -> None:
    frame = decode_frame(encode_frame(kind, data, request_id=request_id, timeout_s=timeout_s))
    assert (frame.type, frame.data, frame.request_id, frame.timeout_s) == (kind, data, request_id, timeout_s)


@pytest.mark.parametrize("kind", [FrameType.RESET, FrameType.STATE, FrameType.CLOSE])
def test_data_may_be_left_out(kind: FrameType) -> None:
    for text in (encode_frame(kind), json.dumps({"type": kind.value, "data": None})):
        assert decode_frame(text).data == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InvalidJSON),
        ("{", InvalidJSON),
        ("{'type': 'state'}", InvalidJSON),
        ('{"type": "state"} {}', InvalidJSON),
        (b"\xff\xfe", InvalidJSON),
        ("[" * 10_000, InvalidJSON),
        ('{"type": "reset", "data": {"a": NaN}}', InvalidJSON),
        ('{"type": "reset", "data": {"a": 1e999}}', InvalidJSON),
        ('{"type": "reset", "data": {"a": "\\ud800"}}', InvalidJSON),
        ("1" * 5_000, InvalidJSON),
        ("[]", InvalidMessage),
        ("null", InvalidMessage),
        ('"reset"', InvalidMessage),
        ("{}", UnknownType),
        ('{"type": null}', UnknownType),
        ('{"type": ["reset"]}', UnknownType),
        ('{"type": "RESET"}', UnknownType),
        ('{"type": "nonsense"}', UnknownType),
        ('{"type": "mcp"}', InvalidMessage),
        ('{"type": "step"}', InvalidMessage),
        ('{"type": "step", "data": []}', InvalidMessage),
        ('{"type": "reset", "data": "x"}', InvalidMessage),
        ('{"type": "state", "extra": 1}', InvalidMessage),
        ('{"type": "reset", "data": {}, "extra": 1}', InvalidMessage),
        ('{"type": "state", "request_id": 1}', InvalidMessage),
        ('{"type": "state", "request_id": ""}', InvalidMessage),
        (json.dumps({"type": "state", "request_id": "x" * 256}), InvalidMessage),
        ('{"type": "state", "timeout_s": "1"}', InvalidMessage),
        ('{"type": "state", "timeout_s": true}', InvalidMessage),
        ('{"type": "state", "timeout_s": 0}', InvalidMessage),
        ('{"type": "state", "timeout_s": -1}', InvalidMessage),
    ],
)
def test_a_bad_frame_has_its_own_error(text: str | bytes, error: type[WireError]) -> None:
    with pytest.raises(error) as refused:
        decode_frame(text)
    assert type(refused.value) is error
    assert len(encode_reply("error", refused.value.to_wire())) < 2_000


@given(st.text() | st.binary() | json_values.map(json.dumps))
def test_whatever_arrives_is_a_frame_or_an_error_of_the_wire(text: str | bytes) -> None:
    for read in (decode_frame, decode_reply):
        try:
            read(text)
        except WireError as error:
            # The refusal can be sent, and understood.
            again = decode_reply(encode_reply("error", error.to_wire()))
            assert type(from_wire(again.data)) is type(error)
    assert request_id_of(text) is None or isinstance(request_id_of(text), str)


near_frames = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([*FrameType, "observation", "error", "mcp"]).map(str) | json_values,
        "data": objects | json_values,
        "request_id": texts | json_values,
        "timeout_s": st.floats() | json_values,
        "extra": json_values,
    },
)


@given(near_frames.map(json.dumps))
def test_what_is_nearly_a_frame_is_one_or_an_error_of_the_wire(text: str) -> None:
    try:
        frame = decode_frame(text)
    except WireError:
        return
    assert isinstance(frame.type, FrameType)
    assert isinstance(frame.data, dict)
    assert frame.timeout_s is None or frame.timeout_s > 0
    assert request_id_of(text) == frame.request_id


@given(
    st.dictionaries(
        st.sampled_from(["type", "tool_name", "arguments", "required", "part", "data"]) | texts, json_values
    )
)
def test_whatever_a_step_carries_is_an_action_or_a_validation_error(data: dict[str, Any]) -> None:
    for types in (ActionTypes(), ActionTypes([Rich])):
        try:
            types.parse(data)
        except InvalidMessage as error:
            assert error.errors
            encode(error.to_wire())


def test_the_refusal_of_a_bad_frame_can_carry_its_request_id() -> None:
    assert request_id_of('{"type": "nonsense", "request_id": "7"}') == "7"
    assert request_id_of('{"type": "state", "request_id": 7}') is None
    assert request_id_of("nonsense") is None


def test_huge_names_are_not_echoed() -> None:
    huge = "x" * 100_000
    for frame in ({"type": huge}, {"type": "state", huge: 1}, {"type": [huge]}):
        with pytest.raises(WireError) as refused:
            decode_frame(json.dumps(frame))
        assert len(refused.value.message) < 200
    with pytest.raises(InvalidMessage) as wrong:
        ActionTypes().parse({"type": huge})
    assert len(wrong.value.message) < 200


def test_a_frame_is_refused_by_its_sender_where_the_receiver_would() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(NotSerializable, match="deep"):
        encode_frame(FrameType.RESET, {"value": value})
    assert decode_frame(encode_frame(FrameType.RESET, {"value": value[0][0]}))


@pytest.mark.parametrize("value", [None, 1, 0.5, 10**8])
def test_a_timeout_is_a_number_of_seconds(value: float | None) -> None:
    assert timeout_of(value) == value


@pytest.mark.parametrize("value", [0, -1, True, "1", [], 10**400, float("inf"), float("nan")])
def test_a_timeout_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidMessage):
        timeout_of(value)


# -- frames of a server


@given(st.sampled_from(["observation", "state", "error"]), objects, st.none() | texts)
def test_a_reply_crosses(kind: str, data: dict[str, Any], request_id: str | None) -> None:
    reply = decode_reply(encode_reply(kind, data, request_id))
    assert (reply.type, reply.data, reply.request_id) == (kind, data, request_id)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"type": 1}',
        '{"type": "state"}',
        '{"type": "state", "data": null}',
        '{"type": "state", "data": []}',
    ],
)
def test_a_reply_without_type_or_data_is_an_error(text: str) -> None:
    with pytest.raises(InvalidMessage):
        decode_reply(text)


def test_an_openenv_server_says_less() -> None:
    payload = {"observation": {"field": 1, "metadata": {"a": 1}}, "reward": True, "done": True, "metadata": {"a": 1}}
    read = parse_observation(payload, AnyObservation)
    assert (read.reward, read.terminated, read.truncated, read.done) == (1.0, True, False, True)
    assert (read.metadata, read.info, read.field) == ({"a": 1}, {}, 1)  # type: ignore[attr-defined]
    sparse: dict[str, Any] = {
        "observation": {},
        "reward": None,
        "done": False,
        "metadata": None,
        "info": None,
        "terminated": None,
    }
    assert parse_observation(sparse, AnyObservation) == AnyObservation()


# -- tools' observations


class _Longer(CallToolObservation):
    """One of an environment's own."""


@pytest.mark.parametrize("reward", ["NaN", "-Infinity"])
@pytest.mark.parametrize("cls", [CallToolObservation, _Longer])
def test_a_reward_that_says_it_is_no_number_is_an_invalid_message(reward: str, cls: type[CallToolObservation]) -> None:
    with pytest.raises(InvalidMessage, match="reward"):
        parse_observation({"observation": {"tool_name": "", "result": None}, "reward": reward, "done": False}, cls)


_FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    texts,
    st.none()
    | st.builds(ToolResult, content=st.lists(objects, max_size=2), data=json_values, meta=st.none() | objects),
    st.none() | st.just(ToolFailure(error_type=ToolErrorType.TIMEOUT, message="late")),
    st.none() | _FINITE,
    st.booleans(),
    st.booleans(),
    objects,
)
def test_the_observation_of_a_tool_call_crosses_as_its_model_says(
    name: str,
    result: ToolResult | None,
    error: ToolFailure | None,
    reward: float | None,
    terminated: bool,
    truncated: bool,
    info: dict[str, Any],
) -> None:
    observation = CallToolObservation(
        tool_name=name, result=result, error=error, reward=reward, terminated=terminated, truncated=truncated, info=info
    )
    data = observation_data(observation)
    assert data["observation"] == to_plain(observation, exclude={"reward", "done", "terminated", "truncated", "info"})
    assert parse_observation(decode_reply(encode_reply("observation", data)).data, CallToolObservation) == observation


def test_a_sum_of_rewards_that_has_become_infinite_is_refused_and_not_null() -> None:
    with pytest.raises(NotSerializable, match="return"):
        observation_data(CallToolObservation(tool_name="a", reward=1.0, info={"return": math.inf}))


@pytest.mark.parametrize("number", ["1e999", "-1E400", f"[{'0,' * 200}1e999]"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_number_that_is_too_large_for_a_float_is_refused_in_short_text_and_long(number: str, kind: Any) -> None:
    for arguments in (f'{{"a":{number}}}', f'{{"a":"text","b":[{number}]}}', f'{{"a":{{"b":{number}}}}}'):
        call = f'{{"type":"call_tool","tool_name":"t","arguments":{arguments}}}'
        for more in ("", ',"request_id":"r"', ',"timeout_s":1'):
            with pytest.raises(InvalidJSON, match="number out of range"):
                decode_frame(kind(f'{{"type":"step","data":{call}{more}}}'))
    with pytest.raises(InvalidJSON, match="number out of range"):
        decode_frame(kind(f'{{"type":"reset","data":{{"options":{number}}}}}'))


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**400])
def test_an_integer_of_any_length_crosses_as_it_is(number: int) -> None:
    call = encode_action(CallToolAction(tool_name="t", arguments={"a": number}))
    assert decode_frame(encode_frame(FrameType.STEP, call)).data["arguments"] == {"a": number}
    data = observation_data(CallToolObservation(tool_name="t", result=ToolResult.wrapping(number)))
    assert decode_reply(encode_reply("observation", data)).data["observation"]["result"]["data"] == number
