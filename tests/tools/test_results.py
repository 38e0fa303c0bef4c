from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
import sqlite3
import types
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from environments import PIXEL, Address, Person
from fastmcp.exceptions import ToolError as FastMCPToolError
from fastmcp.tools import ToolResult as FastMCPResult
from fastmcp.utilities.types import Image
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents
from pydantic import BaseModel, Field, field_serializer
from typing_extensions import TypedDict

from mcpenv import CallToolObservation, MCPEnvironment, Mode
from mcpenv.tools.definition import ToolDefinition
from mcpenv.tools.results import from_fastmcp, outcome_of, to_fastmcp
from mcpenv_client import ToolErrorType, ToolFailure, ToolResult


def made(kind: ToolDefinition, value: Any) -> ToolResult:
    result = outcome_of(kind, value, 0.0).result
    assert result is not None
    return result


class Returning(MCPEnvironment):
    """One tool per return hint; each gives back what the environment was told to give."""

    HINTS: tuple[Any, ...] = (str, int, bool, float, list[int], dict[str, Any], Person, Any, None, int | str, bytes)

    def __init__(self) -> None:
        self.value: Any = None
        for number, hint in enumerate(self.HINTS):

            def give() -> Any:
                """Give it."""
                return self.value

            give.__annotations__["return"] = hint
            self.tool(give, name=f"give_{number}")

        def bare():  # type: ignore[no-untyped-def]
            """Give it, without a hint."""
            return self.value

        self.tool(bare)
        self.reset()

    def give(self, value: Any, hint: Any = Any) -> ToolResult | ToolFailure:
        self.value = value
        name = "bare" if hint == "bare" else f"give_{self.HINTS.index(hint)}"
        observation = self.call_tool(name)
        assert isinstance(observation, CallToolObservation)
        given = observation.error or observation.result
        assert given is not None
        return given

    def kind(self, hint: Any) -> ToolDefinition:
        tool = self._execution.tools.by_mode[Mode.SIMULATION].get(f"give_{self.HINTS.index(hint)}")
        assert tool is not None
        return tool.kind


ENV = Returning()

SCALARS = st.one_of(
    st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.none()
)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))


def encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def expected_of(kind: ToolDefinition, value: Any) -> ToolResult | None:
    """Return FastMCP's result; None if it is none that an MCP client accepts."""
    try:
        result = from_fastmcp(kind.component.convert_result(value))
        if kind.spec.output_schema is not None:
            jsonschema.validate(result.structured_content, kind.spec.output_schema)
    except (FastMCPToolError, ValueError, TypeError, jsonschema.ValidationError):
        return None
    # FastMCP takes an empty list for an empty list of content.
    return result.model_copy(update={"content": [{"type": "text", "text": "[]"}]}) if value == [] else result


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@settings(max_examples=3 * settings().max_examples // 2, deadline=None)
@given(value=PLAIN.filter(encodable), hint=st.sampled_from([str, int, bool, float, Any, int | str, dict[str, Any]]))
def test_invariant_4_the_short_ways_give_what_fastmcp_gives_where_clients_accept_it(value: Any, hint: Any) -> None:
    kind = ENV.kind(hint)
    expected = expected_of(kind, value)
    if expected is None:
        with pytest.raises((FastMCPToolError, ValueError, TypeError)):
            made(kind, value)
        return
    result = made(kind, value)
    assert result == expected
    assert json.dumps(result.model_dump(), sort_keys=True) == json.dumps(expected.model_dump(), sort_keys=True)


@settings(deadline=None)
@given(value=PLAIN.filter(encodable))
def test_a_result_goes_to_fastmcp_and_back_unchanged(value: Any) -> None:
    result = made(ENV.kind(Any), value)
    assert from_fastmcp(to_fastmcp(result)) == result


def test_subclasses_of_plain_types_take_the_long_way_and_give_the_same() -> None:
    class Text(str):
        pass

    class Number(int):
        pass

    for value, hint in ((Text("text"), str), (Number(3), int), (True, int), (3, float)):
        assert made(ENV.kind(hint), value) == from_fastmcp(ENV.kind(hint).component.convert_result(value))


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("grüße 🙂\x00\u2028", "grüße 🙂\x00\u2028"),
        (2**200, 2**200),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (True, True),
        ([1, [2, [3]]], [1, [2, [3]]]),
        ({"a": {"b": None}}, {"a": {"b": None}}),
        ((1, 2), [1, 2]),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00Z"),
        ({"day": date(2026, 1, 31)}, {"day": "2026-01-31"}),
        (Decimal("1.50"), "1.50"),
        (Person(name="ada", address=Address(street="high")), None),
        (np.int64(3), 3),
        (np.float64(0.5), 0.5),
        (np.bool_(False), False),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ({"deep": [np.float32(0.5), {"more": np.arange(2)}]}, {"deep": [0.5, {"more": [0, 1]}]}),
        ((np.int8(1), 2), [1, 2]),
    ],
    ids=str,
)
def test_values_come_back_as_plain_json(value: Any, data: Any) -> None:
    result = ENV.give(value, dict[str, Any] if isinstance(value, dict) else Any)
    assert isinstance(result, ToolResult), result
    if isinstance(value, Person):
        data = value.model_dump()
    if result.structured_content is not None:
        got = result.data
    elif isinstance(data, str):
        got = result.text.strip('"')
    else:
        got = json.loads(result.text)
    assert got == data and json.dumps(got) == json.dumps(data)


def test_numpy_is_found_wherever_values_are_found() -> None:
    @dataclasses.dataclass
    class Holder:
        vector: Any

    class Model(BaseModel, arbitrary_types_allowed=True):
        vector: Any

    for holder in (Holder(np.arange(2)), Model(vector=np.arange(2)), {"set": [np.int64(0), np.int64(1)]}):
        result = ENV.give(holder)
        assert isinstance(result, ToolResult), result
        assert json.loads(result.text) in ({"vector": [0, 1]}, {"set": [0, 1]})


NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (NAN, "result"),
        (-math.inf, "result"),
        ([1.0, NAN], r"result\[1\]"),
        ({"scores": {"b": [0.0, math.inf]}}, r"result\.scores\.b\[1\]"),
        (np.float64("nan"), "result"),
        (np.array([1.0, np.nan]), r"result\[1\]"),
        ({"v": np.array([[1.0], [np.inf]])}, r"result\.v\[1\]\[0\]"),
    ],
    ids=str,
)
@pytest.mark.parametrize("hint", [Any, "bare"])
def test_nan_and_infinity_are_a_failure_that_names_the_field_and_never_null(value: Any, path: str, hint: Any) -> None:
    failure = ENV.give(value, hint)
    assert isinstance(failure, ToolFailure) and failure.error_type is ToolErrorType.EXECUTION_ERROR
    assert re.search(rf"{path}: -?(nan|inf) has no JSON form", failure.message), failure.message


def test_nan_is_found_in_models() -> None:
    class Score(BaseModel):
        value: float

    for value in (Score(value=NAN), [Score(value=NAN)], {"score": Score(value=NAN)}):
        failure = ENV.give(value)
        assert isinstance(failure, ToolFailure) and "nan has no JSON form" in failure.message, failure
    assert isinstance(ENV.give(NAN, float), ToolFailure)


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 1, {"key": object()}, "\ud800", ["\udfff"], type],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_json_form_is_a_failure_or_its_text_and_never_an_exception(value: Any) -> None:
    given = ENV.give(value)
    if isinstance(given, ToolFailure):
        assert given.error_type is ToolErrorType.EXECUTION_ERROR
    else:
        given.model_dump_json().encode()


def test_a_value_that_refers_to_itself_is_a_failure() -> None:
    around: list[Any] = []
    around.append(around)
    failure = ENV.give(around)
    assert isinstance(failure, ToolFailure) and failure.error_type is ToolErrorType.EXECUTION_ERROR
    assert ENV.give("fine", str) == made(ENV.kind(str), "fine")


def test_a_serializer_that_crashes_is_a_failure() -> None:
    class Odd(BaseModel):
        value: int

        @field_serializer("value")
        def crash(self, value: int) -> int:
            raise LookupError("a mistake of the serializer")

    for hint in (Any, "bare"):
        failure = ENV.give(Odd(value=1), hint)
        assert isinstance(failure, ToolFailure) and failure.error_type is ToolErrorType.EXECUTION_ERROR


class Counted(TypedDict):
    n: int


@pytest.mark.parametrize(
    ("value", "hint", "path"),
    [
        ("text", int, "result: 'text' is not of type 'integer'"),
        (3, str, "result: 3 is not of type 'string'"),
        (None, str, "result: None is not of type 'string'"),
        ([1, "a"], list[int], r"result\[1\]: 'a'"),
        ([1], dict[str, Any], "result: there is no structured content"),
        ("x", Person, "result: "),
        ({"found": 3}, Counted, "result: 'n' is a required property"),
        (Person.model_construct(name=3, address=Address(street="high")), Person, "result.name: 3"),
        (-1, Annotated[int, Field(ge=0)], "result: -1"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_its_output_schema_is_a_failure_that_names_tool_and_field(
    value: Any, hint: Any, path: str
) -> None:
    env = MCPEnvironment()

    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    env.tool(give)
    failure = env.call_tool("give").error
    assert failure is not None and re.search(f"'give' cannot be used: {path}", failure.message), failure
    assert env.trajectory is not None and env.trajectory.steps[-1].status.code.value == "env_error"


def test_a_result_of_the_author_that_lacks_what_the_output_schema_requires_is_a_failure() -> None:
    env = MCPEnvironment()
    env.tool(name="bare", output_schema={"type": "object", "required": ["n"]})(lambda: FastMCPResult(content="x"))
    env.tool(name="error", output_schema={"type": "object"})(lambda: FastMCPResult(content="x", is_error=True))
    bare, error = env.call_tool("bare"), env.call_tool("error")
    assert bare.error is not None and "no structured content" in bare.error.message
    assert error.error is None and error.text == "x"


class Blob(BaseModel):
    data: bytes


@dataclasses.dataclass
class Part:
    data: bytes


@pytest.mark.parametrize(
    ("value", "hint", "data"),
    [
        (b"hi>", bytes, "aGk-"),
        (b"\xff\x00", bytes, "_wA="),
        ([b"hi"], list[bytes], ["aGk="]),
        ({"a": b"\xff"}, dict[str, Any], {"a": "_w=="}),
        ({"a": b"\xff"}, dict[str, bytes], {"a": "_w=="}),
        (Blob(data=b"hi"), Blob, {"data": "aGk="}),
        ([Blob(data=b"\xff")], list[Blob], [{"data": "_w=="}]),
        (Part(data=b"hi"), Part, {"data": "aGk="}),
    ],
    ids=str,
)
def test_bytes_are_base64_text_as_the_schema_says(value: Any, hint: Any, data: Any) -> None:
    env = MCPEnvironment()

    def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    env.tool(give)
    result = env.call_tool("give").result  # type: ignore[attr-defined]
    assert result is not None and result.structured_content in ({"result": data}, data, None)
    assert result.text == (data if isinstance(data, str) else json.dumps(data, separators=(",", ":")))
    assert "binary" not in json.dumps(env.list_tools()[0].output_schema)


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: map(str, [1, 2]), ["1", "2"]),
        (lambda: zip("ab", [1, 2], strict=True), [["a", 1], ["b", 2]]),
        (lambda: reversed([1, 2]), [2, 1]),
        (lambda: {"inner": filter(None, [0, 1])}, {"inner": [1]}),
        (lambda: sqlite3.connect(":memory:").execute("SELECT 1, 2"), [[1, 2]]),
        (lambda: {"a": 1}.keys(), ["a"]),
        (lambda: {"a": 1}.values(), [1]),
        (lambda: range(2), [0, 1]),
        (lambda: types.MappingProxyType({"a": 1}), {"a": 1}),
        (lambda: collections.UserDict(a=1), {"a": 1}),
        (list, []),
        (tuple, []),
    ],
)
@pytest.mark.parametrize("hint", [Any, "bare"])
def test_iterators_and_collections_are_read_once(make: Any, data: Any, hint: Any) -> None:
    result = ENV.give(make(), hint)
    assert isinstance(result, ToolResult) and json.loads(result.text) == data


def test_rows_of_sqlite_are_objects_with_their_columns() -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    assert made(ENV.kind(Any), connection.execute("SELECT 1 AS a").fetchall()).text == '[{"a":1}]'


class Silent:
    pass


class Spoken:
    def __str__(self) -> str:
        return "a board"


@pytest.mark.parametrize("value", [Silent(), lambda: 1, Silent, json, {"a": [Silent()]}, Exception(Silent())])
def test_an_object_without_a_json_form_is_a_failure_and_never_its_address(value: Any) -> None:
    failure = ENV.give(value)
    assert (
        isinstance(failure, ToolFailure) and "has no JSON form" in failure.message and " at 0x" not in failure.message
    )


def test_an_object_whose_class_has_a_text_is_that_text() -> None:
    assert made(ENV.kind(Any), Spoken()).text == "a board"


@pytest.mark.parametrize(
    "value",
    [
        {"a": "caf\udce9"},
        FastMCPResult(content="x", meta={"name": "caf\udce9"}),
        ResourceLink(type="resource_link", uri="file:///x", name="caf\udce9"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///x", text="caf\udce9")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_lone_surrogate_anywhere_in_a_result_is_a_failure_of_that_call_alone(value: Any) -> None:
    failure = ENV.give(value, "bare")
    assert isinstance(failure, ToolFailure) and "lone surrogate" in failure.message
    assert ENV.trajectory is not None
    ENV.trajectory.to_plain()


def test_content_that_a_tool_made_itself_passes_as_it_is() -> None:
    blocks = [TextContent(type="text", text="a"), Image(data=PIXEL, format="png"), "b"]
    result = ENV.give(blocks, "bare")
    assert isinstance(result, ToolResult)
    assert [block["type"] for block in result.content] == ["text", "image", "text"]
    assert result.text == "a\n[image]\nb" and result.structured_content is None


def test_a_result_that_says_it_is_an_error_is_a_result_that_failed() -> None:
    result = ENV.give(FastMCPResult(content="no", is_error=True), "bare")
    assert isinstance(result, ToolResult) and result.is_error and result.text == "no"


def test_the_meta_of_a_result_is_kept() -> None:
    result = ENV.give(FastMCPResult(content="x", meta={"cost": 3}), "bare")
    assert isinstance(result, ToolResult) and result.meta == {"cost": 3}


def test_a_set_that_is_not_promised_is_written_in_order() -> None:
    class Letters(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def give() -> str:
                return set("abcdefghij")  # type: ignore[return-value]

            @self.tool
            def nest() -> list[str]:
                return [set("abcdefghij")]  # type: ignore[list-item]

            @self.tool
            def packed() -> bytes:
                return set("abcdefghij")  # type: ignore[return-value]

            @self.tool
            def letters(many: bool) -> dict[str, list[str]]:
                return {"many": set("abcdefghij")}  # type: ignore[dict-item]

    with Letters() as env:
        env.reset()
        for name in ("give", "nest"):
            assert f"{sorted('abcdefghij')} is not of type 'string'" in env.call_tool(name, {}).text
        assert json.loads(env.call_tool("packed", {}).text) == sorted("abcdefghij")
        assert json.loads(env.call_tool("letters", {"many": True}).text) == {"many": sorted("abcdefghij")}
