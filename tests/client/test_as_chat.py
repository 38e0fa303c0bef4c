"""Turns of the messages and the responses API, as chat completions for a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from mcpenv_client.samples.as_chat import NotExpressed, as_chat
from mcpenv_client.samples.rendered import ChatTokens

JSON = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"by": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Add.", "parameters": SCHEMA}


def call(number: int, arguments: Any, name: str = "add") -> JSON:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(arguments: Any, name: str = "add") -> tuple[JSON, JSON]:
    """Return the request and the answer that both APIs below stand for."""
    thinking = {"role": "assistant", "content": "I add.", "reasoning_content": "Twice?"}
    messages: list[JSON] = [
        {"role": "system", "content": "You count."},
        {"role": "user", "content": "Count to 2."},
        {**thinking, "tool_calls": [call(each, arguments, name) for each in (1, 2)]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
    ]
    said = {"role": "assistant", "content": "Done.", "reasoning_content": "It is 2."}
    choice = {"message": said, "finish_reason": "length"}
    return {"messages": messages, "tools": [{"type": "function", "function": {**FUNCTION, "name": name}}]}, {
        "choices": [choice]
    }


def text(value: str) -> JSON:
    return {"type": "text", "text": value}


def thought(value: str) -> JSON:
    return {"type": "thinking", "thinking": value, "signature": "s"}


def test_a_conversation_of_the_messages_api() -> None:
    counted = text("x-anthropic-billing-header: cc_version=2; 17")
    asked = [{"type": "tool_use", "id": f"c{number}", "name": "add", "input": {"by": 1}} for number in (1, 2)]
    results = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
        {"type": "tool_result", "tool_use_id": "c2", "content": [text("2")]},
    ]
    request = {
        "system": [counted, text("You "), text("count.")],
        "messages": [
            {"role": "user", "content": "Count to 2."},
            {"role": "assistant", "content": [thought("Twice?"), text("I add."), *asked]},
            {"role": "user", "content": results},
        ],
        "tools": [
            {"name": "add", "description": "Add.", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
    }
    answer = {"content": [thought("It is 2."), text("Done.")], "stop_reason": "max_tokens"}
    assert as_chat("messages", request, answer) == chat({"by": 1})


def test_a_conversation_of_the_responses_api() -> None:
    def reasoning(value: str) -> JSON:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": value}]}

    def message(role: str, value: str) -> JSON:
        return {"type": "message", "role": role, "content": [{"type": "output_text", "text": value}]}

    given = {"type": "function_call", "namespace": "mcp", "name": "add", "arguments": '{"by": 1}'}
    request = {
        "instructions": "You count.",
        "input": [
            {"role": "user", "content": "Count to 2."},
            reasoning("Twice?"),
            message("assistant", "I add."),
            {**given, "call_id": "c1"},
            {**given, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        ],
        "tools": [
            {"type": "namespace", "name": "mcp", "tools": [{**FUNCTION, "type": "function"}]},
            {"type": "custom", "name": "apply_patch"},
        ],
    }
    answer = {
        "output": [reasoning("It is 2."), message("assistant", "Done.")],
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    assert as_chat("responses", request, answer) == chat('{"by": 1}', "mcp__add")


IMAGE = {"type": "image", "source": {}}
CALL = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
USER = {"role": "user", "content": "go"}
ASKED = {"messages": [USER]}
REFUSED: dict[str, tuple[Any, JSON, JSON]] = {
    "a part of the type image in a message of the role user": (
        "messages",
        {"messages": [{**USER, "content": [IMAGE]}]},
        {},
    ),
    "a part of the type image in a message of the role tool": (
        "messages",
        {"messages": [{**USER, "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
        {},
    ),
    "an encrypted thought": (
        "messages",
        {"messages": [USER]},
        {"content": [{"type": "redacted_thinking", "data": "x"}]},
    ),
    "an encrypted thought ": (
        "responses",
        {"input": "go"},
        {"output": [{"type": "reasoning", "encrypted_content": "x", "summary": [{"text": "short"}]}]},
    ),
    "a part of the type server_tool_use": (
        "messages",
        {"messages": [USER]},
        {"content": [{"type": "server_tool_use"}]},
    ),
    "a thought or a text after a call": ("messages", ASKED, {"content": [CALL, thought("and now")]}),
    "an answer that the agent began": ("messages", {"messages": [USER, {"role": "assistant", "content": "{"}]}, {}),
    "a conversation that the endpoint keeps": ("responses", {"input": "go", "previous_response_id": "r"}, {}),
    "an item of the type custom_tool_call": ("responses", {"input": "go"}, {"output": [{"type": "custom_tool_call"}]}),
    "an item of the type web_search_call": ("responses", {"input": [{"type": "web_search_call"}]}, {}),
    "an item of the type compaction": ("responses", {"input": [{"type": "compaction"}]}, {}),
    "a conversation of generate_content": ("generate_content", {"contents": []}, {}),
}


@pytest.mark.parametrize("part", REFUSED)
def test_a_part_without_a_form_in_chat_completions_is_named(part: str) -> None:
    with pytest.raises(NotExpressed, match=part.strip()):
        as_chat(*REFUSED[part])


class Plain:
    """A tokenizer with a token for each character, and a template that knows neither thoughts nor calls."""

    eos_token_id = 0

    def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
        said = "".join(f"<{each['role']}>{each['content']}" for each in messages)
        return [*map(ord, said + ("<assistant>" if options["add_generation_prompt"] else ""))]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"content": "Done.", "reasoning_content": "Hm."}, "the thought of an answer"),
        ({"content": "Done.", "reasoning": "Hm."}, "the thought of an answer"),
        ({"content": "I add.", "tool_calls": [call(1, "{}")]}, "the calls of an answer"),
    ],
)
def test_what_a_template_leaves_out_of_an_answer_is_named(message: JSON, part: str) -> None:
    tokens = ChatTokens(Plain())
    with pytest.raises(NotExpressed, match=part):
        tokens({"messages": [USER]}, {"choices": [{"message": message}]})
    assert tokens({"messages": [USER]}, {"choices": [{"message": {"content": "Done."}}]}) is not None
