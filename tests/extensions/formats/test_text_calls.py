"""Calls that models write as text: which are made, and what their arguments are."""

from __future__ import annotations

import json
import re
import time
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv_client.formats.text_calls import TextCalls, calls_in
from mcpenv_client.formats.text_values import typed
from mcpenv_client.formats.tool_formats import tools_for
from mcpenv_client.types.tools import Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "data": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/Level"},
    },
    "$defs": {"Level": {"enum": [1, 2, None]}},
}
TOOLS = tools_for("openai", [Tool(name=name, description="", input_schema=SCHEMA) for name in ("sell", "buy")])
TAGS = ["</tool_call>", "<tool_call>", "</function>", "<think>", "</think>", "[TOOL_CALLS]", "a; b", "{", '"', "\n", ""]
TEXTS = st.one_of(st.sampled_from(TAGS), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "count": st.integers(-(2**60), 2**60),
        "data": st.dictionaries(st.text("ab", max_size=2), TEXTS, max_size=2),
        "maybe": st.none() | st.sampled_from(["5", "true", "x y"]),
        "level": st.sampled_from([1, 2, None]),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from(["sell", "buy"]), ARGUMENTS), min_size=1, max_size=3)


def written(form: TextCalls, name: str, arguments: dict[str, Any], *, compact: bool = False) -> str:
    """Return a call as the chat template of a model writes it."""
    data = json.dumps(arguments)
    if form == "hermes":
        return f'<tool_call>\n{{"name": "{name}", "arguments": {data}}}\n</tool_call>'
    if form == "qwen-xml":
        values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
    if form == "mistral":
        return (
            f"[TOOL_CALLS]{name}[ARGS]{data}"
            if compact
            else f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {data}}}]'
        )
    return f'{{"name": "{name}", "parameters": {data}}}'


def read(text: str, form: TextCalls) -> list[tuple[str, Any]]:
    found = list(calls_in(text, form, TOOLS))
    assert all(isinstance(each, dict) for each in found), found
    return [(each["name"], each.get("arguments", each.get("parameters"))) for each in found if isinstance(each, dict)]


@pytest.mark.parametrize("form", get_args(TextCalls))
@given(CALLS, st.booleans())
def test_what_a_template_writes_is_read_back(form: TextCalls, calls: list[tuple[str, Any]], compact: bool) -> None:
    text = ";".join(written(form, *call, compact=compact) for call in calls)
    spoken = "" if form == "llama" else "I do it. "
    assert read(spoken + text, form) == calls


@pytest.mark.parametrize("form", get_args(TextCalls))
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<think>", "</think>"),
        ("<thinking>\n", "\n</thinking>\n"),
        ("", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<Thought>", "</Thought>"),
    ],
)
def test_a_call_in_a_thought_is_not_made(form: TextCalls, before: str, after: str) -> None:
    thought, said = (written(form, name, {"text": name}) for name in ("sell", "buy"))
    assert read(f"{before}{thought}{after}{said}", form) == [("buy", {"text": "buy"})]


@pytest.mark.parametrize("form", get_args(TextCalls))
def test_a_thought_that_is_not_closed_lasts_to_the_end(form: TextCalls) -> None:
    assert read(f"<think>{written(form, 'sell', {})}", form) == []


@pytest.mark.parametrize("form", get_args(TextCalls))
@pytest.mark.parametrize("data", [{"a": "</think>"}, {"a": "[/THINK]", "b": {"c": ["</think>"]}}])
def test_a_mark_inside_of_json_ends_no_thought(form: TextCalls, data: dict[str, Any]) -> None:
    thought, said = written(form, "sell", {"data": data}), written(form, "buy", {})
    assert read(f"<think>{thought};{said}", form) == []
    assert read(f"<think>{thought};{said}</think>{said}", form) == [("buy", {})]
    assert read(f'<think>{{"a": "</think>{said}', form) == [("buy", {})]


def test_only_the_first_end_of_a_thought_without_a_beginning_takes_back_what_was_read() -> None:
    call = written("hermes", "buy", {})
    assert read(f"<think>no</think>{call}</think>{call}", "hermes") == [("buy", {}), ("buy", {})]
    assert read(f"{call}</think> so: </think>{call}", "hermes") == [("buy", {})]


@pytest.mark.parametrize(
    ("form", "text", "found"),
    [
        ("hermes", '<tool_call>{"name": "buy", "arguments": {}}', [("buy", {})]),
        ("hermes", '<tool_call>{"name": "buy"}<tool_call>{"name": "sell"}', [("buy", None), ("sell", None)]),
        ("hermes", '<tool_call>[{"name": "buy"}, {"name": "sell"}]</tool_call>', [("buy", None), ("sell", None)]),
        ("qwen-xml", "<function=buy>\n</function>\n</tool_call>", [("buy", {})]),
        ("qwen-xml", "<tool_call><function=buy><parameter=count>1<parameter=text>\na\n</parameter>",
         [("buy", {"count": 1, "text": "a"})]),
        ("qwen-xml", "<tool_call><function=buy><parameter=text>see </parameter> there</parameter></function>",
         [("buy", {"text": "see </parameter> there"})]),
        ("qwen-xml", 'Use <function=NAME> for it.', []),
        ("qwen-xml", "<function=buy>\n<parameter=count>\n1\n</parameter>\n<para", [("buy", {"count": 1})]),
        ("qwen-xml", '<function=buy><parameter=data>{"a": "</tool_call>"}<parameter=count>1</parameter></function>',
         [("buy", {"data": {"a": "</tool_call>"}, "count": 1})]),
        ("qwen-xml", '<tool_call><function=buy><parameter=data>\n{"a": "<function=sell>"}\n</function></tool_call>',
         [("buy", {"data": {"a": "<function=sell>"}})]),
        ("mistral", '[TOOL_CALLS]buy[CALL_ID]a1[ARGS]{"count": 1}', [("buy", {"count": 1})]),
        ("mistral", '[TOOL_CALLS]buy{"count": 1}', [("buy", {"count": 1})]),
        ("llama", 'Well: <|python_tag|>{"name": "buy", "parameters": {}} and more', [("buy", {})]),
        ("llama", '{"name": "Ann", "age": 3}', []),
        ("llama", '{"name": {"first": "Ann"}}', []),
        ("llama", 'The answer is {"name": "buy", "parameters": {}}', []),
        ("llama", '[{"name": "buy", "parameters": {}}, {"name": "sell", "parameters": {}}]',
         [("buy", {}), ("sell", {})]),
        ("llama", '```json\n{"name": "buy", "parameters": {}}\n```', [("buy", {})]),
        ("llama", 'As in ```json\n{"name": "buy", "parameters": {}}\n```', []),
    ],
)  # fmt: skip
def test_calls_in_other_spellings(form: TextCalls, text: str, found: list[Any]) -> None:
    assert read(text, form) == found


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("hermes", "<tool_call>{'name': 'buy'}</tool_call>", "not JSON"),
        ("hermes", '<tool_call>{"name": "buy"} {"name": "sell"}</tool_call>', "more text follows it"),
        ("hermes", "<tool_call>7</tool_call>", "not a JSON object: 7"),
        ("hermes", "<tool_call>" + "[" * 100_000, "not JSON"),
        ("qwen-xml", "<tool_call>buy</tool_call>", "no <function"),
        ("qwen-xml", "<tool_call><function=buy><parameter=text>cut o", "<parameter=text> is not closed"),
        ("mistral", "[TOOL_CALLS]buy[ARGS]{", "not JSON"),
        ("llama", '{"name": "buy", "parameters": {', "not JSON"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(form: TextCalls, text: str, problem: str) -> None:
    (found,) = calls_in(text, form, TOOLS)
    assert isinstance(found, str) and re.search(re.escape(problem), found)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000,
        "<tool_call>[" * 20_000,
        "<tool_call><function=buy><parameter=text>" + "</parameter> x" * 20_000,
        "<tool_call><function=buy>" + "<parameter=text>" * 20_000,
        "<think>" * 20_000,
        "</think>" * 20_000,
        "<think>" + '<tool_call>{"a": ["' * 10_000 + "</think>",
        "<think>" + '{"a": [{}, ' * 20_000 + "</think>",
        "<think>" + '[{"a": 1}, ' * 20_000 + "</think>",
        '{"name": ' * 20_000,
        '{"name": ' * 9_000 + "1" + "}" * 9_000,  # Python's own reader stops at 10,000 levels
        "[TOOL_CALLS]a" * 20_000,
    ],
    ids=lambda text: text[:40],
)
def test_no_text_takes_long(text: str) -> None:
    for form in get_args(TextCalls):
        begun = time.process_time()
        list(calls_in(text, form, TOOLS))
        assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("null", {"type": "string"}, "null"),
        ("5", {"type": "integer"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("null", {"type": "integer"}, None),
        ("True", {"type": "boolean"}, True),
        ("+5", {"type": "number"}, 5),
        ("{'a': [True]}", {"type": "object"}, {"a": [True]}),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("5", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
        ('"a"', {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"a"'),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"type": ["string", "integer"]}, 5),
        ("0.12345678901234567890123", {"anyOf": [{"type": "number"}, {"type": "string"}]}, "0.12345678901234567890123"),
        ("1.50", {"anyOf": [{"type": "number"}, {"type": "string"}]}, 1.5),
        ("null", {"type": "string", "nullable": True}, None),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {"enum": [1, 2]}, 1),
        ("true", {"const": "true"}, "true"),
        ("1", {"$ref": "#/$defs/Text"}, "1"),
        ("[1]", {"allOf": [{"$ref": "#/$defs/List"}]}, [1]),
        ("1", {"$ref": "#/$defs/Endless"}, 1),
        ('{"a": 1}', {"oneOf": [{"type": "string"}, {"type": "object"}]}, {"a": 1}),
        ('"a"', True, "a"),
        ("1e999", {"type": "number"}, "1e999"),
    ],
)
def test_a_text_is_typed_by_the_whole_schema(text: str, schema: Any, value: Any) -> None:
    root = {
        "$defs": {"Text": {"type": "string"}, "List": {"type": "array"}, "Endless": {"$ref": "#/$defs/Endless"}},
    }
    found = typed(text, schema, root)
    assert found == value and type(found) is type(value)


def test_properties_are_found_in_parts_and_references_of_the_schema() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"own": {"type": "string"}}}],
        "additionalProperties": {"type": "integer"},
        "$defs": {"Base": {"properties": {"id": {"type": "string"}}}},
    }
    tools = tools_for("openai", [Tool(name="buy", description="", input_schema=schema)])
    text = "<tool_call><function=buy><parameter=id>1</parameter><parameter=own>2</parameter><parameter=x>3</parameter>"
    assert [*calls_in(text, "qwen-xml", tools)] == [{"name": "buy", "arguments": {"id": "1", "own": "2", "x": 3}}]
