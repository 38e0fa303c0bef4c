"""Every type of the contract survives client -> JSON -> server -> JSON -> client."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import strategies as st
from pydantic import ValidationError, computed_field
from strategies import (
    Part,
    Rich,
    RichObservation,
    RichState,
    failures,
    floats,
    given,
    json_values,
    listings,
    objects,
    plain_observations,
    records,
    results,
    rewards,
    rich_actions,
    rich_observations,
    states,
    texts,
    tool_actions,
    tool_observations,
    tools,
    trajectories,
)

from mcpenv_client import (
    Action,
    AnyObservation,
    CallToolAction,
    CallToolObservation,
    EnvClient,
    InvalidMessage,
    ListToolsAction,
    NotSerializable,
    Observation,
    Reward,
    State,
    StepRecord,
    StepResult,
    Tool,
    ToolCall,
    ToolErrorType,
    ToolFailure,
    ToolOutcome,
    ToolResult,
    Trajectory,
)
from mcpenv_client.types.values import decode, encode, to_plain
from mcpenv_client.wire.protocol import (
    ActionTypes,
    FrameType,
    decode_frame,
    decode_reply,
    encode_action,
    encode_frame,
    encode_reply,
    observation_data,
    parse_observation,
)

NAN, INF = math.nan, math.inf
TYPES = ActionTypes([Rich])


def to_server(action: Action | dict[str, Any], types: ActionTypes = TYPES) -> Action:
    """An action as the server reads it from the client's frame."""
    return types.parse(decode_frame(encode_frame(FrameType.STEP, encode_action(action))).data)


def to_client(observation: Observation, cls: type[Observation]) -> Observation:
    """An observation as the client reads it from the server's frame."""
    return parse_observation(decode_reply(encode_reply("observation", observation_data(observation))).data, cls)


def step_result(observation: Observation, client: EnvClient[Any, Any, Any]) -> StepResult[Any]:
    """A step's result as the client makes it from the server's frame."""
    return client._parse_result(decode_reply(encode_reply("observation", observation_data(observation))).data)


UNTYPED: EnvClient[Any, Any, Any] = EnvClient("http://127.0.0.1")
TYPED = EnvClient[Rich, RichObservation, RichState]("http://127.0.0.1")

# -- actions


@given(tool_actions)
def test_a_tool_call_crosses(action: CallToolAction) -> None:
    assert to_server(action) == action


@given(rich_actions)
def test_an_own_action_crosses_with_every_kind_of_field(action: Rich) -> None:
    assert to_server(action) == action
    # And back again, as an echo of the server's would.
    assert to_server(to_server(action)) == action


def test_a_listing_crosses() -> None:
    assert to_server(ListToolsAction()) == ListToolsAction()


@given(st.integers())
def test_defaults_that_are_left_out_are_filled_in_by_the_server(required: int) -> None:
    assert to_server({"type": "rich", "required": required}) == Rich(required=required)


def test_numpy_crosses_as_numbers_and_lists() -> None:
    sent = {"a": np.int64(3), "b": [np.float32(0.5)], "c": np.arange(6).reshape(2, 3), "d": np.bool_(False)}
    read = to_server(CallToolAction(tool_name="t", arguments=sent))
    assert isinstance(read, CallToolAction)
    assert read.arguments == {"a": 3, "b": [0.5], "c": [[0, 1, 2], [3, 4, 5]], "d": False}
    rich = to_server(Rich(required=np.int64(4), anything=np.array([1.5])))  # type: ignore[arg-type]
    assert (rich.required, rich.anything) == (4, [1.5])  # type: ignore[attr-defined]


def test_models_and_bytes_in_arguments_cross_as_their_json() -> None:
    read = to_server(CallToolAction(tool_name="t", arguments={"part": Part(data=b"\xff"), "raw": b"\xff"}))
    assert read.arguments == {"part": {"data": "_w==", "when": None, "children": []}, "raw": "_w=="}  # type: ignore[attr-defined]


class Move(Action):
    type: Literal["move", "walk"] = "move"
    by: int = 1


class Untyped(Action):
    by: int = 1


class Required(Action):
    type: Literal["required"]
    by: int = 1


class Doubling(Action):
    by: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.by


class Calling(CallToolAction):
    """The action of a tool call with one more field."""

    priority: int = 0


def test_own_actions_are_told_apart_by_type() -> None:
    types = ActionTypes([Move, Untyped, Required])
    for action in (Move(by=2), Move(type="walk"), Untyped(by=3), Required(type="required", by=4), ListToolsAction()):
        assert to_server(action, types) == action
    assert list(types) == [ListToolsAction, CallToolAction, Move, Untyped, Required]


def test_type_may_be_left_out_where_there_is_one_action_class() -> None:
    assert ActionTypes([Move]).parse({"by": 5}) == Move(by=5)
    assert ActionTypes([Untyped]).parse({"by": 5}) == Untyped(by=5)
    with pytest.raises(InvalidMessage, match="unknown action type null"):
        ActionTypes([Move, Untyped]).parse({"by": 5})
    with pytest.raises(InvalidMessage, match="call_tool"):
        ActionTypes().parse({"by": 5})


def test_computed_fields_are_written_and_not_read() -> None:
    assert encode_action(Doubling(by=3))["twice"] == 6
    assert to_server(Doubling(by=3), ActionTypes([Doubling])) == Doubling(by=3)


def test_a_subclass_of_a_tool_call_keeps_its_fields() -> None:
    assert encode_action(Calling(tool_name="t", priority=3))["priority"] == 3
    with pytest.raises(InvalidMessage) as refused:
        to_server(Calling(tool_name="t", priority=3))
    assert refused.value.errors[0]["loc"] == ["priority"]


def test_two_action_classes_of_one_type_are_refused() -> None:
    class Same(Action):
        type: Literal["walk"] = "walk"

    with pytest.raises(TypeError, match="'walk': Move, Same"):
        ActionTypes([Move, Same])
    with pytest.raises(TypeError, match="call_tool"):
        ActionTypes([Calling])


@pytest.mark.parametrize(
    ("data", "loc"),
    [
        ({"type": "rich"}, ["required"]),
        ({"type": "rich", "required": "x"}, ["required"]),
        ({"type": "rich", "required": 1, "more": 2}, ["more"]),
        ({"type": "rich", "required": 1, "part": {"data": 3}}, ["part", "data"]),
        ({"type": "rich", "required": 1, "when": "yesterday"}, ["when"]),
        ({"type": "call_tool"}, ["tool_name"]),
        ({"type": "call_tool", "tool_name": "t", "arguments": []}, ["arguments"]),
        ({"type": "nothing"}, ["type"]),
        ({"type": 3}, ["type"]),
    ],
)
def test_a_wrong_action_is_refused_with_its_location(data: dict[str, Any], loc: list[str]) -> None:
    with pytest.raises(InvalidMessage) as refused:
        TYPES.parse(data)
    assert refused.value.errors[0]["loc"] == loc


# -- observations


@given(tool_observations())
def test_a_tools_observation_crosses(observation: CallToolObservation) -> None:
    read = to_client(observation, CallToolObservation)
    assert read == observation
    assert (read.text, read.error, read.done) == (observation.text, observation.error, observation.done)


@given(listings)
def test_a_listing_observation_crosses(observation: Observation) -> None:
    assert to_client(observation, type(observation)) == observation


@given(rich_observations)
def test_an_own_observation_crosses_with_every_kind_of_field(observation: RichObservation) -> None:
    assert to_client(observation, RichObservation) == observation


@given(plain_observations)
def test_an_observation_crosses(observation: Observation) -> None:
    assert to_client(observation, Observation) == observation


@given(tool_observations() | listings | plain_observations)
def test_a_step_result_says_what_the_observation_says(observation: Observation) -> None:
    result = step_result(observation, UNTYPED)
    if type(observation) is not Observation:
        assert result.observation == observation
    for name in ("reward", "terminated", "truncated", "done", "info", "text", "error"):
        assert getattr(result, name) == getattr(observation, name)


@given(rich_observations)
def test_a_typed_step_result_has_the_own_observation(observation: RichObservation) -> None:
    result = step_result(observation, TYPED)
    assert result.observation == observation
    assert (result.reward, result.done, result.info) == (observation.reward, observation.done, observation.info)


@given(objects)
def test_an_observation_of_an_unknown_class_has_its_fields_as_attributes(fields: dict[str, Any]) -> None:
    class Own(AnyObservation):
        pass

    named = {f"field_{index}": value for index, value in enumerate(fields.values())}
    read = step_result(Own(**named), UNTYPED).observation
    assert type(read) is AnyObservation
    assert {name: getattr(read, name) for name in named} == named


def test_text_and_error_may_be_fields_of_somebodys_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pydantic warns of fields that hide attributes

        class Page(Observation):
            text: str
            error: str | None = None  # type: ignore[assignment]

    page = Page(text="hello", error="none")
    assert page.model_dump(include={"text", "error"}) == {"text": "hello", "error": "none"}
    assert str(page.text) + str(page.error) == "hellonone"
    assert to_client(page, Page) == page
    read = step_result(page, UNTYPED)
    assert read.observation.model_extra == {"text": "hello", "error": "none"}
    assert [read.text, str(read.error)] == ["hello", "none"]
    with pytest.raises(ValidationError):
        Page()  # type: ignore[call-arg]
    assert (Observation().text, Observation().error) == ("", None)


class Squared(Observation):
    side: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


class SquaredState(State):
    side: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


def test_computed_fields_of_observations_and_states_do_not_hinder_reading() -> None:
    observation = Squared(side=3, terminated=True)
    assert observation_data(observation)["observation"]["area"] == 9
    assert to_client(observation, Squared) == observation
    assert Squared.model_validate(observation.model_dump()) == observation
    client = EnvClient[Any, Squared, SquaredState]("http://127.0.0.1")
    state = client._parse_state(to_plain(SquaredState(side=3)))
    assert (state, state.area, state.model_extra) == (SquaredState(side=3), 9, {})


@pytest.mark.parametrize(
    ("given_", "terminated", "truncated"),
    [
        ({"done": True}, True, False),
        ({"done": True, "truncated": True}, False, True),
        ({"terminated": True}, True, False),
        ({"truncated": True}, False, True),
        ({"done": False}, False, False),
        ({}, False, False),
    ],
)
def test_done_alone_means_terminated(given_: dict[str, bool], terminated: bool, truncated: bool) -> None:
    for made in (Observation(**given_), StepResult(None, **given_)):  # type: ignore[arg-type]
        assert (made.terminated, made.truncated, made.done) == (terminated, truncated, terminated or truncated)


def test_done_contradicting_the_rest_is_refused() -> None:
    with pytest.raises(ValidationError, match="contradicts"):
        Observation(done=False, terminated=True)


def test_assigning_derives_done_anew() -> None:
    observation = Squared()
    observation.truncated = True
    assert observation.done


def test_an_unscored_step_is_not_a_reward_of_zero() -> None:
    for reward in (None, 0.0):
        read = to_client(Observation(reward=reward), Observation)
        assert (read.reward, type(read.reward)) == (reward, type(reward))


# -- tools


@given(tools)
def test_a_tool_crosses(tool: Tool) -> None:
    assert Tool.model_validate(decode(encode(tool))) == tool
    assert Tool.model_validate({**tool.model_dump(), "field_of_a_later_version": 1}) == tool


@given(results)
def test_a_result_crosses(result: ToolResult) -> None:
    assert ToolResult.model_validate(decode(encode(result))) == result
    assert ToolResult.model_validate_json(encode(result)) == result


@given(failures)
def test_a_failure_crosses(failure: ToolFailure) -> None:
    assert ToolFailure.model_validate(decode(encode(failure))) == failure


def test_a_result_is_plain_whatever_it_is_made_from() -> None:
    result = ToolResult(data=np.array([1, 2]), structured_content={"part": Part(data=b"\xff")}, meta={"n": np.int64(1)})
    assert result.data == [1, 2]
    assert result.structured_content == {"part": {"data": "_w==", "when": None, "children": []}}
    assert type((result.meta or {})["n"]) is int


def test_a_result_keeps_its_class() -> None:
    class Longer(ToolResult):
        more: int = 1

    observation = CallToolObservation(tool_name="t", result=Longer(data=1, more=2))
    assert isinstance(observation.result, Longer)


def test_text_of_a_result_is_fit_for_a_chat_message() -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "two"}},
        {"type": "resource", "resource": {"uri": "file:///a", "blob": "aGk="}},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    ]
    assert ToolResult(content=content).text == "one\n[image]\ntwo\n[resource]\n[audio]"
    assert ToolResult().text == ""


def test_a_tool_for_openai() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = Tool(name="add", description="Add.", input_schema=schema).to_openai()
    assert made == {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": schema}}


# -- states


@given(states)
def test_a_state_crosses(state: RichState) -> None:
    read = TYPED._parse_state(decode_reply(encode_reply("state", to_plain(state, "state"))).data)
    assert read == state


@given(st.dictionaries(texts.map("x_{}".format), json_values, max_size=3))
def test_a_state_of_an_unknown_class_keeps_its_fields(fields: dict[str, Any]) -> None:
    read = UNTYPED._parse_state(decode_reply(encode_reply("state", to_plain(State(**fields), "state"))).data)
    assert type(read) is State
    assert read.model_extra == fields


# -- records


@given(records)
def test_a_step_record_crosses(record: StepRecord) -> None:
    read = StepRecord.from_plain(decode(encode(record.to_plain())))
    assert read == record
    assert read.done == record.done


@given(trajectories)
def test_a_trajectory_crosses(trajectory: Trajectory) -> None:
    assert Trajectory.from_plain(decode(encode(trajectory.to_plain()))) == trajectory


def test_the_python_value_of_a_tool_stays_out_of_records() -> None:
    record = StepRecord(
        ToolCall("t", {"raw": b"\xff", "n": np.int64(2)}, 1), ToolOutcome(ToolResult(data=1), value=object())
    )
    data = record.to_plain()
    assert "value" not in data["outcome"]
    assert data["call"]["arguments"] == {"raw": "_w==", "n": 2}
    assert StepRecord.from_plain(data).outcome == replace(record.outcome, value=None)


@given(rewards)
def test_a_reward_crosses(reward: Reward) -> None:
    record = StepRecord(ToolCall("t", {}, 1), ToolOutcome(), reward)
    assert StepRecord.from_plain(decode(encode(record.to_plain()))).reward == reward
    assert copy.copy(reward) == pickle.loads(pickle.dumps(reward)) == reward


@pytest.mark.parametrize("value", [1, True, np.float32(1.0), np.int64(1), np.array(1.0), 1.0])
def test_a_reward_is_a_float(value: Any) -> None:
    reward = Reward(value, {"part": value})
    assert (type(reward.value), reward.value) == (float, 1.0)
    assert type(reward.components["part"]) is float
    assert type(Observation(reward=value).reward) is float


@pytest.mark.parametrize("value", [NAN, INF, -INF, np.float32("nan"), 10**400])
def test_a_reward_that_is_not_finite_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^reward is"):
        Reward(value)
    with pytest.raises(ValueError, match="component 'speed' is"):
        Reward(1.0, {"speed": value})


@pytest.mark.parametrize("value", ["1", None, b"1", [1.0], object(), np.array([1.0, 2.0])])
def test_a_reward_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        Reward(value)


# -- NaN and infinity


class Carrier(Action):
    value: float = 0.0
    part: Any = None


class Seen(Observation):
    value: float = 0.0
    part: Any = None


class Loose(State):
    part: Any = None


class Own(Part):
    x: float = 0.0
    anything: Any = None


def _frames(number: float) -> dict[str, Any]:
    """Return messages with that number in them, by the end of the path that the error must name."""
    deep = {"a": [{"b": number}]}
    finite_call, seen = ToolCall("t", {}, 1), Seen()
    return {
        "arguments.a[0].b": lambda: encode_action(CallToolAction(tool_name="t", arguments=deep)),
        "arguments.m.x": lambda: encode_action(CallToolAction(tool_name="t", arguments={"m": Own(x=number)})),
        "arguments.m.anything": lambda: encode_action(
            CallToolAction(tool_name="t", arguments={"m": Own(anything=number)})
        ),
        "arguments.v[1]": lambda: encode_action(
            CallToolAction(tool_name="t", arguments={"v": np.array([0.0, number])})
        ),
        "metadata.a[0].b": lambda: encode_action(CallToolAction(tool_name="t", metadata=deep)),
        "action.value": lambda: encode_action(Carrier(value=number)),
        "action.part.b": lambda: encode_action(Carrier(part={"b": number})),
        "action.part.anything": lambda: encode_action(Carrier(part=Own(anything=number))),
        "action.by": lambda: encode_action({"type": "move", "by": number}),
        "reset.data.level": lambda: encode_frame(FrameType.RESET, {"level": number}),
        "observation.value": lambda: observation_data(Seen(value=number)),
        "observation.part": lambda: observation_data(Seen(part=number)),
        "observation.part.anything": lambda: observation_data(Seen(part=Own(anything=number))),
        "observation.metadata.a[0].b": lambda: observation_data(Seen(metadata=deep)),
        "info.a[0].b": lambda: observation_data(Seen(info=deep)),
        "metadata.m.anything": lambda: observation_data(
            CallToolObservation(tool_name="t", metadata={"m": Own(anything=number)})
        ),
        "info.m.x": lambda: observation_data(CallToolObservation(tool_name="t", info={"m": Own(x=number)})),
        "observation.reward": lambda: encode_reply(
            "observation", observation_data(seen.model_copy(update={"reward": number}))
        ),
        "reward": lambda: Observation(reward=number),
        "result.data": lambda: ToolResult(data=number),
        "result.data.x": lambda: ToolResult(data=Own(x=number)),
        "result.structured_content.a[0].b": lambda: ToolResult(structured_content=deep),
        "result.meta.a[0].b": lambda: ToolResult(meta=deep),
        "observation.result.data": lambda: encode_reply(
            "observation",
            observation_data(CallToolObservation(tool_name="t", result=ToolResult.model_construct(data=number))),
        ),
        "state.part": lambda: to_plain(Loose(part=number), "state"),
        "state.further.a[0].b": lambda: to_plain(State(further=deep), "state"),  # type: ignore[call-arg]
        "call.arguments.a[0].b": lambda: StepRecord(replace(finite_call, arguments=deep), ToolOutcome()).to_plain(),
        "duration_s": lambda: StepRecord(finite_call, ToolOutcome(duration_s=number)).to_plain(),
        "total_reward": lambda: Trajectory("e", total_reward=number).to_plain(),
        "options.a[0].b": lambda: Trajectory("e", options=deep).to_plain(),
    }


@pytest.mark.parametrize("number", [NAN, INF, -INF])
@pytest.mark.parametrize("path", sorted(_frames(0.0)))
def test_nan_and_infinity_are_refused_by_name_in_every_message(path: str, number: float) -> None:
    with pytest.raises(NotSerializable) as refused:
        _frames(number)[path]()
    assert refused.value.path.endswith(path)


def test_the_same_messages_with_a_finite_number_are_sent() -> None:
    for make in _frames(0.5).values():
        make()


@given(objects, floats)
def test_assigned_values_are_checked_too(metadata: dict[str, Any], reward: float) -> None:
    observation = Observation()
    observation.reward, observation.metadata = reward, metadata
    assert to_client(observation, Observation) == observation
    with pytest.raises(NotSerializable):
        observation.reward = NAN


def test_tool_error_types_are_those_of_the_wire() -> None:
    wire = {"execution_error", "invalid_args", "transport_error", "tool_not_found", "timeout"}
    assert {kind.value for kind in ToolErrorType} == wire
