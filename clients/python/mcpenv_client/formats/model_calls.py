"""The tool calls in a model's messages: structured ones of chat completions, and calls that models write as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcpenv_client.errors import MalformedToolCall
from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.values import encode

from .text_calls import Found, TextCalls, calls_in
from .tool_formats import ProviderTools, read_arguments


@dataclass(frozen=True)
class ModelCall:
    """A tool call in a model's message.

    Attributes:
        id: the call's id, which its answer names.
        name: the tool's name as the model wrote it; empty if there is none.
        action: the action; None if the call cannot be read.
        problem: the reason why it cannot be read, for the model.
    """

    id: str
    name: str
    action: CallToolAction | None
    problem: str = ""


def read_message(
    message: Mapping[str, Any] | str, tools: ProviderTools, turn: int, text_calls: TextCalls | None = None
) -> tuple[dict[str, Any], list[ModelCall]]:
    """Return a model's message in the form that the conversation stores, and its calls in order.

    Calls without an id get one. Structured arguments that are a JSON object stay as they were written. Others become
    ``{}`` in the stored message, because many endpoints refuse a conversation with them; `ModelCall.problem` quotes
    them.

    Args:
        message: a message of chat completions, or its text.
        tools: the tools that the model was given.
        turn: the number of the message in its episode, for the ids.
        text_calls: how the model writes calls as text; None: text has no calls.

    Raises:
        ValueError: the message has calls that are not in the format of chat completions.
    """
    if isinstance(message, str):
        message = {"content": message}
    kept = {name: value for name, value in message.items() if value not in (None, [])}
    kept = {**kept, "role": "assistant", "content": kept.get("content")}
    calls: list[ModelCall] = []
    structured = kept.get("tool_calls", [])
    if not isinstance(structured, list):
        raise ValueError(f"tool_calls of a message is a {type(structured).__name__}, not a list")
    if structured:
        kept["tool_calls"] = [_completed(call, f"call_{turn}_{number}") for number, call in enumerate(structured)]
        calls = [_structured(call, tools) for call in kept["tool_calls"]]
    if text_calls is not None and isinstance(kept["content"], str):
        begin = len(calls)
        calls += [
            _written(f"call_{turn}_{begin + number}", found, tools)
            for number, found in enumerate(calls_in(kept["content"], text_calls, tools))
        ]
    return kept, calls


def _completed(call: Any, call_id: str) -> dict[str, Any]:
    """Return a copy of a structured call with a type and an id."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a tool call of a message has no function with a name")
    own = call.get("id")
    return {
        "type": "function",
        **call,
        "id": own if isinstance(own, str) and own else call_id,
        "function": dict(function),
    }


def _structured(call: dict[str, Any], tools: ProviderTools) -> ModelCall:
    """Return a structured call, and put readable arguments in its place in the message.

    A text that is a JSON object stays as the model wrote it: trainers find a conversation's earlier tokens by comparing
    its messages with the ones they sent.
    """
    function = call["function"]
    name: str = function["name"]
    written = function.get("arguments")
    try:
        sent = read_arguments(name, written)
    except MalformedToolCall as error:
        function["arguments"] = "{}"
        return ModelCall(call["id"], name, None, error.reason)
    if not isinstance(written, str) or not written.strip():
        function["arguments"] = encode(sent).decode()
    try:
        return ModelCall(call["id"], name, tools.action(name, sent))
    except MalformedToolCall as error:
        return ModelCall(call["id"], name, None, error.reason)


def _written(call_id: str, found: Found, tools: ProviderTools) -> ModelCall:
    """Return a call that was written as text: an object with a name and arguments, or the reason why it is none."""
    if isinstance(found, str):
        return ModelCall(call_id, "", None, found)
    name = found.get("name")
    if not isinstance(name, str) or not name:
        return ModelCall(call_id, "", None, "It has no name.")
    try:
        return ModelCall(call_id, name, tools.action(name, found.get("arguments", found.get("parameters"))))
    except MalformedToolCall as error:
        return ModelCall(call_id, name, None, error.reason)
