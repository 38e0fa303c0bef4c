"""Masks of TRL beside those of samples: in a Python that has trl. Prints a JSON object for each chat template."""

from __future__ import annotations

import json
from typing import Any

from small_tokenizer import tokenizer_of
from trl import chat_template_utils

from mcpenv_client.samples import SampledTurn, samples_of, samples_of_recorded
from mcpenv_client.samples.rendered import ChatTokens
from mcpenv_client.types.model_turns import Api, ModelTurn

TEMPLATES = ("qwen3", "qwen2_5", "lfm2_v2")
"""TRL's templates for training: they mark what the model wrote."""

APIS: tuple[Api, ...] = ("chat_completions", "messages", "responses")
THOUGHT = {"reasoning_content": "Where may it be?"}
PARAMETERS = {"type": "object", "properties": {"colour": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}]


def call(number: int, colour: str) -> dict[str, Any]:
    return {
        "id": str(number),
        "type": "function",
        "function": {"name": "look", "arguments": json.dumps({"colour": colour})},
    }


MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You open doors."},
    {"role": "user", "content": "Find the red one."},
    {"role": "assistant", "content": "I look twice.", "tool_calls": [call(1, "red"), call(2, "grün")]},
    {"role": "tool", "tool_call_id": "1", "content": "nothing"},
    {"role": "tool", "tool_call_id": "2", "content": '{"doors": ["red"]}'},
    {"role": "assistant", "content": "", "tool_calls": [call(3, "blue")]},
    {"role": "tool", "tool_call_id": "3", "content": "it is open"},
    {"role": "assistant", "content": "Done."},
]


def as_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the arguments of its calls as objects, as templates take them."""
    calls = [
        {**each, "function": {**each["function"], "arguments": json.loads(each["function"]["arguments"])}}
        for each in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def as_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as those of Anthropic's API."""
    found: list[dict[str, Any]] = []
    for each in messages:
        if each["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": each["tool_call_id"], "content": each["content"]}
            if found[-1]["role"] == "user":
                found[-1]["content"].append(block)
                continue
            found.append({"role": "user", "content": [block]})
        else:
            content: list[dict[str, Any]] = []
            if "reasoning_content" in each:
                content.append({"type": "thinking", "thinking": each["reasoning_content"], "signature": ""})
            if each["content"]:
                content.append({"type": "text", "text": each["content"]})
            for one in each.get("tool_calls", ()):
                function = one["function"]
                given = json.loads(function["arguments"])
                content.append({"type": "tool_use", "id": one["id"], "name": function["name"], "input": given})
            found.append({"role": each["role"], "content": content})
    return found


def as_items(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as items of OpenAI's responses API."""
    found: list[dict[str, Any]] = []
    for each in messages:
        if each["role"] == "tool":
            found.append(
                {"type": "function_call_output", "call_id": each["tool_call_id"], "output": each["content"]},
            )
            continue
        if "reasoning_content" in each:
            thought = {"type": "reasoning_text", "text": each["reasoning_content"]}
            found.append({"type": "reasoning", "summary": [], "content": [thought]})
        if each["content"]:
            text = {"type": "output_text", "text": each["content"]}
            found.append({"type": "message", "role": each["role"], "content": [text]})
        for one in each.get("tool_calls", ()):
            found.append({"type": "function_call", "call_id": one["id"], **one["function"]})
    return found


def recorded(api: Api, messages: list[dict[str, Any]]) -> list[ModelTurn]:
    """Return the turns of a conversation as a proxy in front of that API records them, without tokens."""
    function = TOOLS[0]["function"]
    turns = []
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = messages[1:at]
        asked: dict[str, Any] = {"messages": messages[:at], "tools": TOOLS}
        said: dict[str, Any] = {"choices": [{"message": message}]}
        if api == "messages":
            tool = {"name": "look", "description": "Look.", "input_schema": PARAMETERS}
            asked = {"system": messages[0]["content"], "messages": as_messages(before), "tools": [tool]}
            said = {"content": as_messages([message])[0]["content"]}
        elif api == "responses":
            asked = {"instructions": messages[0]["content"], "input": as_items(before)}
            asked["tools"] = [{"type": "function", **function}]  # type: ignore[dict-item]
            said = {"output": as_items([message])}
        turns.append(ModelTurn(api, "/v1", asked, status=200, answer=said))
    return turns


def by_api(tokens: ChatTokens, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tokens of each API's samples, and why turns are in none."""
    found: dict[str, Any] = {}
    for api in APIS:
        samples = samples_of_recorded(recorded(api, messages), None, tokens, "small")
        reasons = [each.reason for each in samples[0].left_out]
        found[api] = {"tokens": [[each.tokens, each.mask, each.tokenizer] for each in samples], "left_out": reasons}
    return found


def main() -> None:
    for name in TEMPLATES:
        tokenizer = tokenizer_of()
        tokenizer.chat_template = getattr(chat_template_utils, f"{name}_training_chat_template")
        tokens = ChatTokens(tokenizer)
        turns = []
        for at, message in enumerate(MESSAGES):
            if message["role"] == "assistant":
                answer = {"choices": [{"message": message}]}
                made = tokens({"messages": MESSAGES[:at], "tools": TOOLS}, answer)
                turns.append(SampledTurn(*(made or ([], [])), index=at))
        samples = samples_of(turns)
        theirs = tokenizer.apply_chat_template(
            [as_objects(message) for message in MESSAGES],
            tools=TOOLS,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        apis = by_api(tokens, MESSAGES)
        thoughts = by_api(tokens, [{**each, **THOUGHT} if each["role"] == "assistant" else each for each in MESSAGES])
        ours = {"tokens": samples[0].tokens, "mask": samples[0].mask, "samples": len(samples)}
        found = {"tokens": list(theirs["input_ids"]), "mask": list(theirs["assistant_masks"])}
        texts = [tokenizer.decode([each]) for each in found["tokens"]]
        print(
            json.dumps(
                {"template": name, "ours": ours, "theirs": found, "texts": texts, "apis": apis, "thoughts": thoughts}
            )
        )


if __name__ == "__main__":
    main()
