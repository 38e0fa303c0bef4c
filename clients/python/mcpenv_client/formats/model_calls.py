"""The tool calls in a model's messages: structured ones of chat completions, and calls that models write as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mcpenv_client.errors import MalformedToolCall
from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.values import decode, encode

from .tool_formats import ProviderTools, read_arguments

TextCalls = Literal["hermes", "qwen-xml", "mistral", "llama"]
"""How models write calls as text: ``<tool_call>`` with JSON (Hermes, Qwen), ``<tool_call>`` with ``<function=...>``
(Qwen3-Coder), ``[TOOL_CALLS]`` with a JSON list (Mistral), a JSON object with ``parameters`` alone (Llama 3)."""

_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL = "[TOOL_CALLS]"
_LLAMA_TAG = "<|python_tag|>"


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
            for number, found in enumerate(_found(kept["content"], text_calls, tools))
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


def _written(call_id: str, found: dict[str, Any] | str, tools: ProviderTools) -> ModelCall:
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


def _found(text: str, form: TextCalls, tools: ProviderTools) -> Iterator[dict[str, Any] | str]:
    """Yield the calls in a text, or the reason in place of a call that cannot be read."""
    if form == "hermes":
        for match in _TAG.finditer(text):
            yield _object(match[1])
    elif form == "qwen-xml":
        for match in _TAG.finditer(text):
            function = _FUNCTION.search(match[1])
            yield "It has no <function=...>." if function is None else _xml(function[1], function[2], tools)
    elif form == "mistral":
        _, tag, rest = text.partition(_MISTRAL)
        if tag:
            yield from _list(rest)
    elif form == "llama":
        written = text.strip().removeprefix(_LLAMA_TAG).strip()
        if written.startswith("{") and '"name"' in written:
            yield _object(written)
    else:
        raise ValueError(f"there are no text calls {form!r}. Use one of: {', '.join(get_args(TextCalls))}")


def _object(text: str) -> dict[str, Any] | str:
    try:
        value = decode(text.strip())
    except ValueError as error:
        return f"It is not JSON ({error}): {text.strip()[:200]}"
    return value if isinstance(value, dict) else f"It is not a JSON object: {text.strip()[:200]}"


def _list(text: str) -> Iterator[dict[str, Any] | str]:
    try:
        # More text may follow the list.
        values, _ = json.JSONDecoder().raw_decode(text.strip())
    except ValueError as error:
        yield f"It is not JSON ({error}): {text.strip()[:200]}"
        return
    for value in values if isinstance(values, list) else [values]:
        yield value if isinstance(value, dict) else f"It is not a JSON object: {str(value)[:200]}"


def _xml(name: str, body: str, tools: ProviderTools) -> dict[str, Any]:
    """Return a call in Qwen3-Coder's form. An argument is read as JSON unless its schema declares a text."""
    properties = tools.properties(name)
    arguments: dict[str, Any] = {}
    for match in _PARAMETER.finditer(body):
        argument, text = match[1], match[2]
        arguments[argument] = text if _is_text(properties.get(argument)) else _json_or_text(text)
    return {"name": name, "arguments": arguments}


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _json_or_text(text: str) -> Any:
    try:
        return decode(text)
    except ValueError:
        return text  # the environment reports the expected type
