from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from environments import EVERYTHING_CALLS, EverythingEnvironment, counted
from fastmcp import Client

from mcpenv import CallToolObservation, Context, InvalidTool, MCPEnvironment, Mode
from mcpenv.tools.registry import ToolRegistry
from mcpenv_client import Tool, ToolErrorType, ToolResult


def called(env: MCPEnvironment, tool: str, /, **arguments: Any) -> ToolResult:
    observation = env.call_tool(tool, arguments)
    assert isinstance(observation, CallToolObservation) and observation.error is None, observation.text
    assert observation.result is not None
    return observation.result


def failed(env: MCPEnvironment, tool: str, /, **arguments: Any) -> ToolErrorType:
    error = env.call_tool(tool, arguments).error
    assert error is not None
    return error.error_type


@pytest.fixture
def env() -> EverythingEnvironment:
    env = EverythingEnvironment()
    env.reset()
    return env


@pytest.fixture
def tools(env: EverythingEnvironment) -> dict[str, Tool]:
    return {tool.name: tool for tool in env.list_tools()}


# -- registering


@pytest.mark.parametrize("order", ["never", "before", "after", "between"])
def test_super_init_is_optional_and_its_place_is_free(order: str) -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            if order == "before":
                super().__init__()

            @self.tool
            def one() -> int:
                """One."""
                return 1

            if order == "between":
                super().__init__()
            self.tool(self.two)
            if order == "after":
                super().__init__()

        def two(self) -> int:
            """Two."""
            return 2

    env = Env()
    assert [tool.name for tool in env.list_tools()] == ["one", "two"]
    assert called(env, "one").data == 1 and called(env, "two").data == 2


def test_the_decorator_gives_the_function_back() -> None:
    env = MCPEnvironment()

    def one() -> int:
        """One."""
        return 1

    assert env.tool(one) is one
    assert env.tool(name="two")(one) is one
    assert env.tool("three")(one) is one
    assert [tool.name for tool in env.list_tools()] == ["one", "two", "three"]


def test_tools_can_be_registered_outside_the_constructor_and_taken_away() -> None:
    env = MCPEnvironment()
    env.reset()

    def one() -> int:
        """One."""
        return 1

    env.tool(one)
    assert called(env, "one").data == 1
    env.remove_tool("one")
    assert env.list_tools() == [] and failed(env, "one") is ToolErrorType.TOOL_NOT_FOUND
    with pytest.raises(InvalidTool):
        env.remove_tool("one")


@pytest.mark.parametrize("name", ["reset", "step", "state", "close"])
def test_invariant_2_reserved_names_are_refused_at_registration(name: str) -> None:
    env = MCPEnvironment()

    def tool() -> int:
        """Do it."""
        return 1

    tool.__name__ = name
    for register in (
        lambda: env.tool(tool),
        lambda: env.tool(name=name)(lambda: 1),
        lambda: env.tool(name)(lambda: 1),
        lambda: env.tool(mode="production", name=name)(lambda: 1),
    ):
        with pytest.raises(InvalidTool, match="reserved for the orchestrator"):
            register()  # type: ignore[no-untyped-call]
    assert env.list_tools() == []


def test_a_name_is_taken_once_per_mode() -> None:
    env = MCPEnvironment()

    def one() -> int:
        """One."""
        return 1

    env.tool(mode="simulation")(one)
    env.tool(mode=Mode.PRODUCTION)(one)
    for mode in (None, "simulation", Mode.PRODUCTION):
        with pytest.raises(InvalidTool, match="registered twice"):
            env.tool(mode=mode)(one)
    assert [tool.name for tool in env.list_tools()] == ["one"]


def test_a_refused_registration_leaves_the_other_mode_as_it_was() -> None:
    env = MCPEnvironment()

    def one() -> int:
        """One."""
        return 1

    env.tool(mode="production")(one)
    with pytest.raises(InvalidTool):
        env.tool(one)
    assert env.list_tools() == []


def test_an_unknown_mode_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(InvalidTool, match=r"unknown mode 'training'. Use 'simulation', 'production'"):
        MCPEnvironment().tool("tool", mode="training")(lambda: 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: lambda: 1, "has no name"),
        (lambda: 3, "cannot be called"),
        (lambda: any_arguments, r"\*args"),
        (lambda: any_options, r"\*\*kwargs"),
        (lambda: functools.partial(any_arguments), r"\*args"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_the_reason(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(InvalidTool, match=why):
        MCPEnvironment().tool(make())


def any_arguments(*args: int) -> int:
    """Sum."""
    return sum(args)


def any_options(**options: int) -> int:
    """Sum."""
    return sum(options.values())


def test_a_toolbox_forgets_its_tools() -> None:
    env = MCPEnvironment()

    def one() -> int:
        """One."""
        return 1

    env.tool(one)
    registry: ToolRegistry = env._execution.tools
    assert "one" in registry.by_mode[Mode.PRODUCTION]
    env.close()
    assert list(registry.listed(Mode.SIMULATION)) == []


# -- modes


def test_a_constructor_argument_that_changes_a_literal_changes_the_schema() -> None:
    for choice in ("right", "up", "right"):
        env = EverythingEnvironment(choice)
        (choose,) = [tool for tool in env.list_tools() if tool.name == "choose"]
        assert choose.input_schema["properties"]["side"]["enum"] == ["left", choice]
        assert called(env, "choose", side=choice).text == f"{choice} SMALL LOW"
        other = "up" if choice == "right" else "right"
        assert failed(env, "choose", side=other) is ToolErrorType.INVALID_ARGS


# -- what tools can be


def test_every_tool_of_the_everything_environment_gives_a_result() -> None:
    env = EverythingEnvironment()
    names = [tool.name for tool in env.list_tools()]
    assert set(names) - set(EVERYTHING_CALLS) == {"ask", "refuse"}
    for name in EVERYTHING_CALLS:
        observation = env.call_tool(name, EVERYTHING_CALLS[name])
        assert observation.error is None, f"{name}: {observation.text}"
        assert observation.reward == 0.5 and observation.done == (name == "done")


def test_methods_closures_partials_and_callable_objects(env: EverythingEnvironment, tools: dict[str, Tool]) -> None:
    assert called(env, "move", by=2).data == 2 and called(env, "move_later").data == 3 and env.moved == 3
    assert called(env, "partial", second="given").text == "bound-given"
    assert called(env, "partial", second="given", glue="+").text == "bound+given"
    assert called(env, "shout", text="hey").text == "HEY!"
    assert "first" not in tools["partial"].input_schema["properties"]
    assert tools["partial"].description == "A partial of a function."
    assert tools["shout"].input_schema["required"] == ["text"]
    assert tools["move"].description == "Move by some steps." and tools["move_later"].description == "Move, later."


def test_a_decorated_function_has_the_signature_of_the_one_inside(
    env: EverythingEnvironment, tools: dict[str, Tool]
) -> None:
    assert called(env, "decorated", text="ab", times=2).text == "abab"
    assert set(tools["decorated"].input_schema["properties"]) == {"text", "times"}
    assert tools["decorated"].description == "A decorated function."


def test_a_decorator_sees_every_call() -> None:
    env = MCPEnvironment()

    @env.tool
    @counted
    async def later(text: str) -> str:
        """Give it back."""
        return text

    assert called(env, "later", text="x").text == "x"
    assert later.calls == 1  # type: ignore[attr-defined]
    assert failed(env, "later", text=1) is ToolErrorType.INVALID_ARGS
    assert later.calls == 1  # type: ignore[attr-defined]


def test_generators_give_lists(env: EverythingEnvironment) -> None:
    assert called(env, "generated", count=3).text == "[0,1,2]"
    assert called(env, "generated_later", count=2).text == "[0,1]"


def test_a_decorated_async_generator_gives_a_list() -> None:
    env = MCPEnvironment()

    @env.tool
    @counted
    async def numbers(count: int) -> AsyncIterator[int]:
        """Count."""
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    for _ in range(2):
        assert called(env, "numbers", count=2).text == "[0,1]"


def test_models_unions_literals_and_enums_arrive_as_python_objects(env: EverythingEnvironment) -> None:
    result = called(env, "models", person={"name": "ada", "address": {"street": "high"}}, places=[{"x": 1.5}])
    assert result.data == {"name": "ada", "address": {"street": "high", "number": 1}, "tags": ["1.5"]}
    assert called(env, "unions", value="7", pet={"kind": "dog"}).text == "str Dog None"
    assert called(env, "unions", value=7, pet={"kind": "cat"}, options={"depth": 1}).text == "int Cat {'depth': 1}"
    assert called(env, "unions", value=None, pet={"kind": "cat"}).text.startswith("NoneType")
    assert called(env, "choose", side="left", size="large", level=2).text == "left LARGE HIGH"
    types = ["date", "datetime", "timedelta", "Decimal", "UUID", "bytes"]
    assert called(env, "odd_types", **EVERYTHING_CALLS["odd_types"]).data["kinds"] == types


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("models", {"person": {"name": "ada"}, "places": [{"y": 1}]}),
        ("models", {"person": {"name": "ada", "address": {"street": "x", "number": 0}}, "places": []}),
        ("unions", {"value": 1, "pet": {"kind": "fish"}}),
        ("choose", {"side": "up"}),
        ("choose", {"side": "left", "size": "SMALL"}),
        ("annotated", {"count": 11}),
        ("annotated", {"count": 1, "name": "X"}),
        ("annotated", {}),
        ("annotated", {"count": 1, "extra": True}),
        ("odd_types", {**EVERYTHING_CALLS["odd_types"], "key": "none"}),
        ("partial", {"first": "x", "second": "y"}),
    ],
)
def test_arguments_that_do_not_fit_are_invalid_and_the_tool_does_not_run(
    env: EverythingEnvironment, name: str, arguments: dict[str, Any]
) -> None:
    assert failed(env, name, **arguments) is ToolErrorType.INVALID_ARGS


def test_constraints_and_descriptions_of_parameters_are_in_the_schema(tools: dict[str, Tool]) -> None:
    properties = tools["annotated"].input_schema["properties"]
    assert properties["count"] == {"description": "How many", "maximum": 10, "minimum": 1, "type": "integer"}
    assert properties["ratio"]["description"] == "A ratio"
    assert properties["name"]["pattern"] == "^[a-z]+$" and properties["name"]["default"] == "nobody"
    assert tools["annotated"].input_schema["required"] == ["count"]
    assert tools["annotated"].input_schema["additionalProperties"] is False


def test_options_of_fastmcp_reach_the_listing(tools: dict[str, Tool]) -> None:
    dressed = tools["dressed"]
    assert dressed.title == "With everything"
    assert dressed.annotations is not None
    assert dressed.annotations["readOnlyHint"] is True and dressed.annotations["openWorldHint"] is False
    assert dressed.meta is not None and dressed.meta["owner"] == "tests"
    assert sorted(dressed.meta["fastmcp"]["tags"]) == ["one", "two"]
    assert tools["structured"].output_schema == {
        "type": "object",
        "properties": {"total": {"type": "integer"}},
        "required": ["total"],
    }
    assert tools["unstructured"].output_schema is None
    assert tools["plain"].output_schema is not None


def test_a_tool_without_docstring_is_described_by_its_name() -> None:
    env = MCPEnvironment()

    @env.tool
    def open_the_door() -> int:
        return 1

    assert env.list_tools()[0].description == "Open the door."


# -- what tools give back


def test_resources_links_files_and_text_keep_their_order(env: EverythingEnvironment) -> None:
    result = called(env, "resources")
    assert [block["type"] for block in result.content] == ["text", "resource", "resource_link", "resource", "text"]
    assert result.text == "before\na note\n[resource_link]\n[resource]\nafter"


def test_structured_content_is_told_apart_from_text(env: EverythingEnvironment) -> None:
    structured = called(env, "structured", numbers=[1, 2, 3])
    assert structured.text == "3 numbers" and structured.data == structured.structured_content == {"total": 6}
    assert called(env, "typed", x=1.5).data == {"x": 1.5, "y": 1.5}
    plain = called(env, "plain", text="text")
    assert plain.structured_content == {"result": "text"} and plain.data == "text"
    unstructured = called(env, "unstructured", text="text")
    assert unstructured.structured_content is None and unstructured.text == "text"


def test_numpy_moments_and_nothing_come_back_as_plain_data(env: EverythingEnvironment) -> None:
    assert called(env, "numbers").data == {"scalar": 3, "vector": [0, 1, 2], "flag": True, "wide": 2**70}
    assert called(env, "moment").data == "2026-01-31T12:00:00Z"
    assert called(env, "nothing").data is None


# -- context and dependencies


def test_progress_and_logs_of_a_context_go_to_the_record(env: EverythingEnvironment) -> None:
    assert called(env, "in_context", steps=2).text == "seen 0"
    assert env.trajectory is not None
    logs = env.trajectory.steps[-1].logs
    assert [(entry.level, entry.message, entry.progress, entry.total) for entry in logs] == [
        ("progress", "step 1", 1, 2),
        ("progress", "step 2", 2, 2),
        ("info", "half way", None, None),
        ("warning", "careful", None, None),
    ]


def test_what_a_context_keeps_lasts_until_the_next_reset(env: EverythingEnvironment) -> None:
    assert [called(env, "in_context").text for _ in range(3)] == ["seen 0", "seen 1", "seen 2"]
    other = EverythingEnvironment()
    assert called(other, "in_context").text == "seen 0"
    env.reset()
    assert called(env, "in_context").text == "seen 0"


def test_a_sync_tool_may_take_a_context(env: EverythingEnvironment) -> None:
    assert called(env, "in_context_sync", text="yes").text == "yes True True"


def test_dependencies_are_injected_and_not_in_the_schema(env: EverythingEnvironment, tools: dict[str, Tool]) -> None:
    assert called(env, "injected", text="with").text == "with connection async connection True"
    assert set(tools["injected"].input_schema["properties"]) == {"text"}
    assert failed(env, "injected", text="with", connection="mine") is ToolErrorType.INVALID_ARGS


def test_behind_an_mcp_client_a_context_talks_to_the_client(env: EverythingEnvironment) -> None:
    reports: list[tuple[float, float | None, str | None]] = []
    messages: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        reports.append((done, total, message))

    async def log(message: Any) -> None:
        messages.append(message.level)

    async def main() -> None:
        async with Client(env.mcp, progress_handler=progress, log_handler=log) as client:
            assert (await client.call_tool("in_context", {"steps": 1})).data == "seen 0"

    asyncio.run(main())
    assert reports == [(1, 1, "step 1")]
    assert messages == ["info", "warning"]
    assert env.trajectory is not None and len(env.trajectory.steps[-1].logs) == 3


def test_injected_tools_share_their_parse_and_keep_to_their_instance() -> None:
    class Env(MCPEnvironment):
        def __init__(self, name: str) -> None:
            @self.tool
            async def who(ctx: Context) -> str:
                """Say who."""
                await ctx.info(name)
                return name

    one, other = Env("one"), Env("other")
    assert [called(env, "who").text for env in (one, other, one)] == ["one", "other", "one"]
    for env, name in ((one, "one"), (other, "other")):
        assert env.trajectory is not None
        assert {entry.message for step in env.trajectory.steps for entry in step.logs} == {name}
