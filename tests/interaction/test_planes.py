"""The same body over every plane."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from planes import AGENT, ALL, CONTROL, OVER, EpisodeDone, Outcome, Plane
from worlds import PIXEL, Judged, Ledger, WithLifespan, WithServer, World

from mcpenv import ExecutionError, Mode
from mcpenv.execution.execution import Execution
from mcpenv_client import ToolErrorType

NO_REWARDS = dict.fromkeys(AGENT, "the agent plane shows no reward, done or reset (invariant 2)")
ONLY_AGENTS = dict.fromkeys(CONTROL, "about MCP resources and prompts, which the control plane does not have")


def test_lists_the_tools_of_the_mode(plane: Plane) -> None:
    names = [tool.name for tool in plane.list()]
    assert names[:3] == ["add", "add_sync", "draw"]
    assert "hint" in names
    assert "ticket" not in names


@pytest.mark.planes(without={"stdio": "its environment is in another process"})
def test_invariant_1_every_step_passes_through_call_tool(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    call_tool = Execution.call_tool

    async def counted(self: Execution, name: str, *args: Any, **options: Any) -> Any:
        called.append(name)
        return await call_tool(self, name, *args, **options)

    monkeypatch.setattr(Execution, "call_tool", counted)
    for name in ("add", "add_sync", "missing"):
        plane.call(name)
    assert called == ["add", "add_sync", "missing"]


def test_invariant_4_schemas_are_the_same_everywhere(plane: Plane) -> None:
    here = World()
    expected = [tool.model_dump(mode="json") for tool in here.list_tools()]
    here.close()
    assert [tool.model_dump(mode="json") for tool in plane.list()] == expected


@pytest.mark.parametrize(("given", "meant"), [("bye", "Did you mean 'by'? "), ("colour", "")])
def test_an_unknown_argument_is_refused_with_the_parameters_that_exist(plane: Plane, given: str, meant: str) -> None:
    refused = plane.call("add", {"by": 1, given: 2})
    assert refused.failed
    said = f"add: invalid arguments: {given}: Unexpected keyword argument. {meant}The parameters are: by"
    assert said in refused.text


def test_invariant_4_mode_decides_visibility_and_nothing_else(plane: Plane) -> None:
    names = [tool.name for tool in plane.list()]
    assert plane.call("hint").text == "try adding"
    assert plane.call("weather").text == "simulated"
    assert names.count("weather") == 1
    assert "ticket" not in names
    assert plane.call("ticket", {"text": "x"}).error_type is ToolErrorType.TOOL_NOT_FOUND


@pytest.mark.planes(without=dict.fromkeys(("ws-asgi", "ws-uvicorn", "http"), "production has no control plane"))
def test_production_shows_its_own_tools(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(in_mode=Mode.PRODUCTION)
    names = [tool.name for tool in plane.list()]
    assert "ticket" in names
    assert "hint" not in names
    assert plane.call("ticket", {"text": "broken"}).text == "ticket: broken"
    assert plane.call("weather").text == "live"
    assert plane.call("hint").error_type is ToolErrorType.TOOL_NOT_FOUND


def test_calls_sync_and_async_tools(plane: Plane) -> None:
    assert plane.call("add", {"by": 2}).data == 2
    assert plane.call("add_sync", {"by": 3}).data == 5
    assert plane.call("add").text == "6"


def test_takes_and_returns_nested_models(plane: Plane) -> None:
    shape = {"name": "triangle", "points": [{"x": 1, "y": 2}], "color": "red"}
    outcome = plane.call("draw", {"shape": shape, "at": {"x": 7}, "scale": 2})
    assert outcome.data == {"name": "triangle", "points": [{"x": 1, "y": 2}, {"x": 7, "y": 0}], "color": "red"}


def test_takes_enums_literals_and_unions(plane: Plane) -> None:
    assert plane.call("paint", {"color": "green", "mode": "slow", "width": "thin"}).data == {
        "color": "green",
        "mode": "slow",
        "width": "thin",
    }


def test_values_come_back_unchanged(plane: Plane) -> None:
    values: list[object] = ["", "äöü 😀 \u2028", 2**53 - 1, -1.5, None, True, [1, [2]], {"a": {"b": []}}, "NaN"]
    for value in values:
        outcome = plane.call("echo", {"value": value})
        assert not outcome.failed, value
        if isinstance(value, dict):
            assert outcome.data == value
        if isinstance(value, str):
            assert outcome.text == value


def test_carries_images_audio_and_resources(plane: Plane) -> None:
    (image,) = plane.call("image").content
    assert image["type"] == "image"
    assert image["mimeType"] == "image/png"
    assert base64.b64decode(image["data"]) == PIXEL
    (audio,) = plane.call("audio").content
    assert audio["type"] == "audio"
    (resource,) = plane.call("resource").content
    assert resource["resource"]["text"] == "inside"


def test_context_keeps_state_between_calls(plane: Plane) -> None:
    assert plane.call("remember", {"key": "k", "value": 1}).data is None
    assert plane.call("remember", {"key": "k", "value": 2}).data == 1
    assert plane.call("remember", {"key": "k", "value": 3}).data == 2


def test_injects_dependencies_and_hides_them(plane: Plane) -> None:
    assert plane.call("injected", {"x": 3}).text == "injected 3"
    (tool,) = [tool for tool in plane.list() if tool.name == "injected"]
    assert list(tool.input_schema["properties"]) == ["x"]
    (remember,) = [tool for tool in plane.list() if tool.name == "remember"]
    assert "ctx" not in remember.input_schema["properties"]


def failed(outcome: Outcome, kind: ToolErrorType, plane_name: str) -> bool:
    """Failed for this reason; agents learn of the reason only by the text."""
    return outcome.failed and (outcome.error_type is kind or plane_name in AGENT)


def test_invalid_arguments_name_the_place(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("draw", {"shape": {"name": "x", "points": [{"x": "wide"}]}})
    assert failed(outcome, ToolErrorType.INVALID_ARGS, plane_name)
    assert "shape.points.0.x" in outcome.text
    assert failed(plane.call("add", {"by": 1, "of": 2}), ToolErrorType.INVALID_ARGS, plane_name)
    assert plane.call("add", {"by": 1}).data == 1


def test_unknown_fields_of_a_model_are_refused_with_those_that_exist(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("draw", {"shape": {"name": "x", "points": [{"x": 1}, {"x": 1, "y\n": 2}]}})
    assert failed(outcome, ToolErrorType.INVALID_ARGS, plane_name)
    assert r"shape.points.1.'y\n': Extra inputs" in outcome.text
    assert outcome.text.endswith(". Did you mean 'y'? The fields of shape.points.1 are: x, y")


def test_unknown_tools_are_told_apart(plane: Plane) -> None:
    outcome = plane.call("nope")
    assert outcome.failed
    assert outcome.error_type is ToolErrorType.TOOL_NOT_FOUND
    assert "nope" in outcome.text


def test_invariant_8_an_exception_shows_neither_path_nor_traceback(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("fails")
    assert failed(outcome, ToolErrorType.EXECUTION_ERROR, plane_name)
    assert "/srv" not in outcome.text
    assert "Traceback" not in outcome.text
    assert "incident" in outcome.text


def test_invariant_8_a_tools_own_message_is_shown_as_it_is(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("refuses")
    assert failed(outcome, ToolErrorType.EXECUTION_ERROR, plane_name)
    assert outcome.text == "the door at /north/gate is locked"


def test_nan_is_an_error_that_names_the_field(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("nan")
    assert failed(outcome, ToolErrorType.EXECUTION_ERROR, plane_name)
    assert "result.score" in outcome.text


def test_a_deadline_stops_the_tool_and_not_the_episode(plane: Plane, plane_name: str) -> None:
    outcome = plane.call("late")
    assert failed(outcome, ToolErrorType.TIMEOUT, plane_name)
    assert plane.call("add").data == 1


def test_a_constructor_argument_changes_the_schema(open_plane: Callable[..., Plane]) -> None:
    def names(plane: Plane) -> list[str]:
        (greet,) = [tool for tool in plane.list() if tool.name == "greet"]
        values: list[str] = greet.input_schema["properties"]["name"]["enum"]
        return values

    assert names(open_plane()) == ["ada", "bob"]
    other = open_plane(names=("eve", "dan"))
    assert names(other) == ["eve", "dan"]
    assert other.call("greet", {"name": "eve"}).text == "hello eve"
    assert other.call("greet", {"name": "ada"}).failed


def test_invariant_6_sqlite_opened_in_the_constructor_works(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(Ledger)
    assert plane.call("book", {"amount": 5}).data == 5
    assert plane.call("book", {"amount": -2}).data == 3


def test_a_handed_in_server_has_its_middleware_everywhere(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(WithServer)
    assert {tool.name for tool in plane.list()} == {"upper", "note", "lower"}
    assert plane.call("upper", {"text": "Ab"}).text == "AB!"
    assert plane.call("lower", {"text": "Ab"}).text == "ab!"
    assert plane.call("note", {"text": "hm"}).text == "hm!"
    assert plane.call("missing").error_type is ToolErrorType.TOOL_NOT_FOUND
    assert plane.call("upper", {"text": 3}).failed


@pytest.mark.planes(without=ONLY_AGENTS)
def test_a_handed_in_server_has_its_resources_and_prompts(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(WithServer)
    client, loop = plane.client, plane.loop  # type: ignore[attr-defined]
    assert [str(r.uri) for r in loop.run(client.list_resources())] == ["test://motto"]
    assert loop.run(client.read_resource("test://motto"))[0].text == "to and fro"
    assert [p.name for p in loop.run(client.list_prompts())] == ["advise"]
    message = loop.run(client.get_prompt("advise", {"topic": "tea"})).messages[0]
    assert message.content.text == "Advise on tea."


def test_a_tool_of_a_handed_in_server_has_what_its_lifespan_yields(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(WithLifespan)
    assert [plane.call("users").text for _ in range(2)] == ["['Ada']"] * 2


@pytest.mark.planes(without=ONLY_AGENTS)
def test_a_resource_of_a_handed_in_server_has_what_its_lifespan_yields(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(WithLifespan)
    client, loop = plane.client, plane.loop  # type: ignore[attr-defined]
    assert loop.run(client.read_resource("test://users"))[0].text == "['Ada']"
    assert loop.run(client.get_prompt("users")).messages[0].content.text == "['Ada']"


@pytest.mark.planes(without=NO_REWARDS)
def test_invariant_5_rewards_are_made_inside(plane: Plane) -> None:
    outcome = plane.call("add")
    assert outcome.reward == 0.5
    assert outcome.info["reward"] == {"ok": 1.0}
    assert outcome.info["return"] == 0.5
    assert plane.call("look").reward is None
    assert plane.call("fails").reward == -1.0
    assert plane.call("nope").reward == -1.0
    assert plane.call("add", {"by": "x"}).reward == -1.0


CALLS: list[tuple[str, dict[str, str]]] = [
    ("say", {"word": "four"}),
    ("say_later", {"word": "on"}),
    ("say", {}),
    ("say", {"word": "on"}),
    ("stop", {}),
]


@pytest.mark.planes(without=NO_REWARDS)
@pytest.mark.parametrize(
    ("settings", "rewards"),
    [({}, [3.0, 2.0, 0.0, 1.0, 31.0]), ({"sync_only": True}, [4.0, 2.0, None, 2.0, 3.0])],
    ids=["mixed", "sync"],
)
def test_invariant_5_a_rubric_gives_the_same_rewards_everywhere(
    open_plane: Callable[..., Plane], settings: dict[str, bool], rewards: list[float | None]
) -> None:
    plane = open_plane(Judged, **settings)
    for _ in range(2):  # and again after a reset: its state is the episode's
        outcomes = [plane.call(name, arguments) for name, arguments in CALLS]
        assert [outcome.reward for outcome in outcomes] == rewards
        assert [outcome.done for outcome in outcomes] == [False, False, False, False, True]
        assert outcomes[-1].info["reward"]["end"] == 3.0 and outcomes[0].info["reward"]["letters"] == 4.0
        assert outcomes[-1].info["return"] == sum(reward or 0.0 for reward in rewards)
        plane.reset()


@pytest.mark.planes(without=NO_REWARDS)
def test_invariant_5_a_rubric_that_fails_is_an_error_with_an_incident_everywhere(
    open_plane: Callable[..., Plane],
) -> None:
    plane = open_plane(Judged)
    assert plane.call("say", {"word": "four"}).reward == 3.0
    with pytest.raises(ExecutionError) as raised:
        plane.call("say", {"word": "fail"})
    assert raised.value.incident
    assert "ruler" not in raised.value.message
    assert plane.call("say", {"word": "four"}).reward == 2.0
    assert plane.call("stop").reward == 31.0


@pytest.mark.planes(without=NO_REWARDS)
def test_a_rubric_scores_the_tools_of_a_handed_in_server(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(Judged, mounted=True)
    assert plane.call("upper", {"text": "a"}).reward == 2.0
    assert plane.call("say", {"word": "abc"}).reward == 3.0


@pytest.mark.planes(without=dict.fromkeys(CONTROL, "about sessions that nobody orchestrates"))
def test_a_rubric_has_no_effect_on_a_world_in_use(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(Judged)
    assert plane.call("say", {"word": "fail"}).text == "fail"
    assert not plane.call("stop").failed
    assert plane.call("say", {"word": "on"}).text == "on"


@pytest.mark.planes(without=NO_REWARDS)
def test_finish_ends_the_episode_and_adds_its_reward(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(target=3)
    assert plane.call("add").done is False
    last = plane.call("add", {"by": 5})
    assert last.done is True
    assert last.reward == 10.5
    assert last.info["reason"] == "target"
    with pytest.raises(EpisodeDone):
        plane.call("add")
    plane.reset(start=1)
    assert plane.call("add").data == 2


@pytest.mark.planes(without=NO_REWARDS)
def test_a_terminal_tool_ends_the_episode_when_it_returned(plane: Plane) -> None:
    assert plane.call("submit", {}).done is False
    assert plane.call("submit", {"answer": "42"}).done is True
    with pytest.raises(EpisodeDone):
        plane.call("submit", {"answer": "43"})


@pytest.mark.planes(without=dict.fromkeys(CONTROL, "about sessions that nobody orchestrates"))
def test_a_world_in_use_never_ends(open_plane: Callable[..., Plane]) -> None:
    plane = open_plane(target=2)
    assert plane.call("add", {"by": 5}).data == 5
    assert plane.call("submit", {"answer": "x"}).text == "handed in x"
    assert plane.call("add").data == 6
    assert OVER not in plane.call("add").text


def test_invariant_2_reserved_names_are_no_tools(plane: Plane) -> None:
    for name in ("reset", "step", "state", "close"):
        assert name not in [tool.name for tool in plane.list()]
        assert plane.call(name).error_type is ToolErrorType.TOOL_NOT_FOUND


def test_every_plane_is_there() -> None:
    assert len(ALL) == 7
