"""Tools in the formats of models' APIs: legal names, strict schemas, inlined references, and every call's way back."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import strategies as st
from strategies import given

from mcpenv_client import CallToolAction, MalformedToolCall, Tool, ToolFormat, ToolNotExpressible, tools_for

FORMATS: list[ToolFormat] = ["openai", "openai-strict", "anthropic", "gemini", "hf"]
LEGAL = {
    "openai": "[a-zA-Z0-9_-]{1,64}",
    "openai-strict": "[a-zA-Z0-9_-]{1,64}",
    "anthropic": "[a-zA-Z0-9_-]{1,64}",
    "gemini": "[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}",
    "hf": "(?s).+",
}

SEARCH = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "description": "What to find."},
        "limit": {"type": "integer", "default": 10},
        "where": {"$ref": "#/$defs/Place", "default": {"folder": "/"}},
    },
    "required": ["text"],
    "$defs": {"Place": {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]}},
}
TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/Node"}},
    "required": ["node"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None}},
        }
    },
}


def tool(name: str = "search", schema: dict[str, Any] | None = None) -> Tool:
    return Tool(name=name, description="Search.", input_schema=SEARCH if schema is None else schema)


def of(**properties: Any) -> dict[str, Any]:
    """The schema of a tool whose arguments are all optional."""
    return {"type": "object", "properties": properties}


# -- shapes


def test_each_format_has_the_shape_that_its_api_takes() -> None:
    listed = {form: tools_for(form, [tool()]).listed for form in FORMATS}
    function = {"name": "search", "description": "Search.", "parameters": SEARCH}
    assert listed["openai"] == listed["hf"] == [{"type": "function", "function": function}]
    assert listed["anthropic"] == [{"name": "search", "description": "Search.", "input_schema": SEARCH}]
    declared = {"name": "search", "description": "Search.", "parametersJsonSchema": SEARCH}
    assert listed["gemini"] == [{"functionDeclarations": [declared]}]
    assert listed["openai-strict"][0]["function"]["strict"] is True


@pytest.mark.parametrize("form", FORMATS)
def test_no_tools_are_an_empty_list(form: ToolFormat) -> None:
    assert tools_for(form, []).listed == []


def test_an_unknown_format_names_those_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no tool format .cohere..*openai-strict"):
        tools_for("cohere", [])  # type: ignore[arg-type]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools have the name 'search'"):
        tools_for("openai", [tool(), tool()])


# -- names


def names_in(form: ToolFormat, names: list[str]) -> list[str]:
    listed = tools_for(form, [tool(name, {"type": "object"}) for name in names]).listed
    if form == "gemini":
        return [entry["name"] for entry in listed[0]["functionDeclarations"]] if listed else []
    return [entry["function"]["name"] if "function" in entry else entry["name"] for entry in listed]


@given(st.lists(st.text("ab._/: é9-", min_size=1, max_size=4) | st.text("x.", min_size=60, max_size=140), unique=True))
def test_every_name_is_legal_and_comes_back(names: list[str]) -> None:
    for form in FORMATS:
        made = tools_for(form, [tool(name, {"type": "object"}) for name in names])
        legal = names_in(form, names)
        assert all(re.fullmatch(LEGAL[form], name) for name in legal)
        assert len(set(legal)) == len(names)
        assert [made.action(name, {}).tool_name for name in legal] == names
        assert list(made.names.items()) == list(zip(legal, names, strict=True))


def test_a_legal_name_stays_and_the_others_are_numbered() -> None:
    assert names_in("openai", ["a.b", "a_b", "a/b"]) == ["a_b_2", "a_b", "a_b_3"]
    assert names_in("gemini", ["9.b", "a.b"]) == ["_9.b", "a.b"]
    long = "x" * 70
    assert names_in("openai", [long, long + "y"]) == ["x" * 64, "x" * 62 + "_2"]


def test_an_unknown_name_is_left_for_the_environment_to_refuse() -> None:
    assert tools_for("openai-strict", [tool()]).action("no_such", "{}").tool_name == "no_such"


# -- calls


@pytest.mark.parametrize(
    "call",
    [
        {"id": "1", "type": "function", "function": {"name": "a_b", "arguments": '{"x": 1}'}},
        {"type": "function_call", "call_id": "1", "name": "a_b", "arguments": '{"x": 1}'},
        {"type": "tool_use", "id": "1", "name": "a_b", "input": {"x": 1}},
        {"functionCall": {"name": "a_b", "args": {"x": 1}}},
        {"function_call": {"name": "a_b", "args": {"x": 1}}},
        {"name": "a_b", "arguments": {"x": 1}},
    ],
    ids=["chat", "responses", "anthropic", "gemini", "gemini-sdk", "template"],
)
def test_a_call_of_every_api_is_an_action(call: dict[str, Any]) -> None:
    made = tools_for("openai", [tool("a.b", of(x={"type": "integer"}))])
    assert made.action_of(call) == CallToolAction(tool_name="a.b", arguments={"x": 1})


def test_an_object_of_an_sdk_is_read_as_its_data() -> None:
    class Call:
        def model_dump(self) -> dict[str, Any]:
            return {"function": {"name": "a_b", "arguments": ""}}

    assert tools_for("openai", [tool("a.b")]).action_of(Call()) == CallToolAction(tool_name="a.b")


@pytest.mark.parametrize(
    ("text", "reason"), [('{"x": ', "not JSON"), ("[1]", "not a JSON object"), ("NaN", "not JSON")]
)
def test_arguments_that_are_no_object_are_refused_with_their_text(text: str, reason: str) -> None:
    with pytest.raises(MalformedToolCall, match=reason) as caught:
        tools_for("openai", [tool()]).action("search", text)
    assert text in caught.value.reason


def test_a_call_without_a_name_is_refused() -> None:
    for call in ({"arguments": "{}"}, "search()"):
        with pytest.raises(MalformedToolCall):
            tools_for("openai", [tool()]).action_of(call)


# -- strict mode


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = tools_for("openai-strict", [tool("t", schema)]).listed[0]["function"]["parameters"]
    return made


def test_optional_keys_are_nullable_and_required_and_their_defaults_are_described() -> None:
    made = strict(SEARCH)
    assert made["required"] == ["text", "limit", "where"]
    assert made["properties"] == {
        "text": {"type": "string", "description": "What to find. (minLength: 1)"},
        "limit": {"description": "(default: 10)", "anyOf": [{"type": "integer"}, {"type": "null"}]},
        "where": {
            "description": '(default: {"folder": "/"})',
            "anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}],
        },
    }
    made_tools = tools_for("openai-strict", [tool()])
    action = made_tools.action("search", '{"text": "a", "limit": null, "where": null}')
    assert action.arguments == {"text": "a"}


def test_null_stays_where_it_is_a_value() -> None:
    nullable = {"type": ["integer", "null"]}
    schema = {**of(a=nullable, b={**nullable, "default": 5}, c={**nullable, "default": None}), "required": ["a"]}
    action = tools_for("openai-strict", [tool("t", schema)]).action("t", '{"a": null, "b": null, "c": null}')
    assert action.arguments == {"a": None, "b": None}


def test_recursive_definitions_stay_references() -> None:
    assert_strict(strict(TREE))
    action = tools_for("openai-strict", [tool("t", TREE)]).action("t", '{"node": {"next": {"next": null}}}')
    assert action.arguments == {"node": {"next": {}}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of(a={"type": "object", "additionalProperties": {"type": "string"}}), "a may have keys of any name"),
        (of(a={"type": "object"}), "a may have keys of any name"),
        ({"type": "object", "additionalProperties": True}, "the arguments may have keys of any name"),
        (of(a={}), "a accepts any value"),
        (of(a=True), "a accepts any value"),
        (of(a={"description": "Anything."}), "a accepts any value"),
        (of(a={"type": "array"}), "a is a list of any values"),
        (of(a={"type": "array", "items": {"type": "array", "items": {}}}), "a.items.items accepts any value"),
        (of(a={"type": "string", "not": {"const": "x"}}), "a has the keyword not"),
        (of(a={"allOf": [{"type": "string"}, {"minLength": 1}]}), "a has the keyword allOf"),
        (
            of(a=of(b={"type": "object", "patternProperties": {"x": {"type": "string"}}})),
            "a.b may have keys of any name",
        ),
        (of(a={**of(b={"type": "string"}), "anyOf": [{"required": ["b"]}]}), "a has the keyword anyOf"),
        ({**of(a={"type": "string"}), "oneOf": [{"required": ["a"]}]}, "no anyOf or oneOf at the top"),
        (of(a={"type": ["string", "null"]}), "a may be null and may be left out"),
        ({**of(), "required": ["a"]}, "the required key 'a' is not in properties"),
        (of(a={"$ref": "#/$defs/no"}), "names nothing"),
        (of(a={"$ref": "https://example.com/schema"}), "which is no definition|not a JSON pointer"),
        (of(a={"type": "string"}, b={"$ref": "#/properties/a"}), "b refers to '#/properties/a'.*inline"),
        ({**of(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}, "leads to itself"),
    ],
)
def test_what_strict_mode_cannot_express_is_refused_by_name(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ToolNotExpressible, match=reason) as caught:
        tools_for("openai-strict", [tool("fine", {"type": "object"}), tool("odd", schema)])
    assert list(caught.value.problems) == ["odd"]
    assert "'odd'" in str(caught.value)


def test_too_large_a_schema_is_refused() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        deep = {**of(a=deep), "required": ["a"]}
    wide = of(a={"enum": [str(number) for number in range(1001)]})
    for schema, reason in ((deep, "more than 10 levels"), (wide, "1001 values of enum")):
        with pytest.raises(ToolNotExpressible, match=reason):
            strict(schema)


def assert_strict(schema: Any) -> None:
    """Hold a schema against the rules of OpenAI's guide."""
    if isinstance(schema, list):
        for each in schema:
            assert_strict(each)
    if not isinstance(schema, dict):
        return
    assert not schema.keys() & {"default", "oneOf", "allOf", "minLength", "uniqueItems", "not"}
    assert "$ref" not in schema or schema.keys() == {"$ref"}
    assert schema.keys() & {"type", "anyOf", "$ref"}
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    for keyword in ("properties", "$defs"):
        for inner in schema.get(keyword, {}).values():
            assert_strict(inner)
    assert_strict(schema.get("items"))
    assert_strict(schema.get("anyOf"))


Case = tuple[dict[str, Any], Any, Any]
"""A schema, a value that fits it, and the value as a strict model writes it."""


def scalar_cases() -> st.SearchStrategy[Case]:
    def same(schema: dict[str, Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Case]:
        return values.map(lambda value: (schema, value, value))

    return st.one_of(
        same({"type": "string", "minLength": 0, "title": "Text"}, st.text(max_size=5)),
        same({"type": "integer", "minimum": -5}, st.integers(-5, 5)),
        same({"type": "number"}, st.integers(0, 3) | st.floats(0, 1)),
        same({"type": "boolean"}, st.booleans()),
        same({"enum": ["a", "b", 1]}, st.sampled_from(["a", "b", 1])),
        same({"const": "only"}, st.just("only")),
        same({"type": ["string", "null"], "default": "x"}, st.none() | st.text(max_size=3)),
        same({"$ref": "#/$defs/Day", "description": "A day."}, st.sampled_from(["mon", "tue"])),
    )


@st.composite
def object_cases(draw: st.DrawFn, inner: st.SearchStrategy[Case], first: str = "") -> Case:
    drawn = draw(st.dictionaries(st.sampled_from(["a", "b", "c", "$ref", "default"]), inner, max_size=4))
    properties: dict[str, Any] = {}
    required, value, written = [], {}, {}
    for name, (schema, part, as_written) in drawn.items():
        properties[name], value[name], written[name] = schema, part, as_written
        if draw(st.booleans()):
            required.append(name)
        elif "default" not in schema and draw(st.booleans()):
            del value[name]
            written[name] = None
    if first:
        properties["kind"], value["kind"], written["kind"] = {"const": first}, first, first
        required.append("kind")
    return {"type": "object", "properties": properties, "required": required}, value, written


@st.composite
def list_cases(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    schema, value, written = draw(inner)
    count = draw(st.integers(0, 2))
    return {"type": "array", "items": schema}, [value] * count, [written] * count


@st.composite
def union_cases(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = [draw(object_cases(inner, first)) for first in ("one", "two")]
    _, value, written = draw(st.sampled_from(cases))
    return {draw(st.sampled_from(["anyOf", "oneOf"])): [schema for schema, *_ in cases]}, value, written


cases = st.recursive(
    scalar_cases(), lambda inner: object_cases(inner) | list_cases(inner) | union_cases(inner), max_leaves=8
)


@given(object_cases(cases))
def test_a_strict_call_comes_back_as_the_arguments_that_were_meant(case: Case) -> None:
    schema, meant, written = case
    schema = {**schema, "$defs": {"Day": {"type": "string", "enum": ["mon", "tue"]}}}
    made = tools_for("openai-strict", [tool("t", schema)])
    as_listed = made.listed[0]["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(as_listed)
    assert_strict(as_listed)
    jsonschema.validate(meant, schema)
    jsonschema.validate(written, as_listed)
    restored = made.action("t", json.dumps(written)).arguments
    assert restored == meant


# -- references


def test_references_are_inlined_on_request() -> None:
    (entry,) = tools_for("hf", [tool()], inline=True).listed
    parameters = entry["function"]["parameters"]
    place = SEARCH["$defs"]["Place"]  # type: ignore[index]
    assert parameters["properties"]["where"] == {**place, "default": {"folder": "/"}}
    assert "$ref" not in json.dumps(parameters) and "$defs" not in parameters


def test_a_recursive_schema_cannot_be_inlined() -> None:
    with pytest.raises(ToolNotExpressible, match=r"'tree'.*refers to itself \(#/\$defs/Node\)"):
        tools_for("hf", [tool("tree", TREE)], inline=True)


def test_inlining_stops_where_few_definitions_make_very_many() -> None:
    defs: dict[str, Any] = {"D0": {"type": "string"}}
    for level in range(1, 30):
        below = {"$ref": f"#/$defs/D{level - 1}"}
        defs[f"D{level}"] = of(a=below, b=below)
    with pytest.raises(ToolNotExpressible, match="more than 20000 parts"):
        tools_for("hf", [tool("bomb", {**of(a={"$ref": "#/$defs/D29"}), "$defs": defs})], inline=True)


def test_only_references_are_replaced_not_values_and_names_that_look_like_them() -> None:
    schema = {
        **of(**{"$ref": {"type": "string", "enum": ["$ref"], "default": {"$ref": "#/$defs/no"}}}),
        "$defs": {"a/b~c": {"type": "integer"}},
    }
    schema["properties"]["n"] = {"$ref": "#/$defs/a~1b~0c", "minimum": 3}
    made = tools_for("hf", [tool("t", schema)], inline=True).listed[0]["function"]["parameters"]
    assert made["properties"]["$ref"] == schema["properties"]["$ref"]
    assert made["properties"]["n"] == {"allOf": [{"type": "integer"}, {"minimum": 3}]}


@given(object_cases(cases))
def test_an_inlined_schema_accepts_the_same_values(case: Case) -> None:
    schema, meant, _ = case
    schema = {**schema, "$defs": {"Day": {"type": "string", "enum": ["mon", "tue"]}}}
    (entry,) = tools_for("openai", [tool("t", schema)], inline=True).listed
    assert '"#/$defs' not in json.dumps(entry)
    jsonschema.validate(meant, entry["function"]["parameters"])


def test_anthropic_refuses_a_choice_at_the_top() -> None:
    schema = {**of(a={"type": "string"}), "anyOf": [{"required": ["a"]}]}
    with pytest.raises(ToolNotExpressible, match="anyOf at the top, which Anthropic's API refuses"):
        tools_for("anthropic", [tool("t", schema)])
    assert tools_for("openai", [tool("t", schema)]).listed[0]["function"]["parameters"] == schema
