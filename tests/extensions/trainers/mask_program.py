"""Masks of TRL beside those of samples: in a Python that has trl. Prints a JSON object for each chat template."""

from __future__ import annotations

import json
from typing import Any

from small_tokenizer import tokenizer_of
from trl import chat_template_utils

from mcpenv_client.samples import SampledTurn, samples_of
from mcpenv_client.samples.rendered import ChatTokens

TEMPLATES = ("qwen3", "qwen2_5", "lfm2_v2")
"""TRL's templates for training: they mark what the model wrote."""

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
        ours = {"tokens": samples[0].tokens, "mask": samples[0].mask, "samples": len(samples)}
        found = {"tokens": list(theirs["input_ids"]), "mask": list(theirs["assistant_masks"])}
        texts = [tokenizer.decode([each]) for each in found["tokens"]]
        print(json.dumps({"template": name, "ours": ours, "theirs": found, "texts": texts}))


if __name__ == "__main__":
    main()
