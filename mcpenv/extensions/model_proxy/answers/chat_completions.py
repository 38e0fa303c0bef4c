"""Answers of OpenAI's chat completions API, and of the many servers that speak it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .reading import (
    JSON,
    Reading,
    call_of,
    error_of,
    ids_of,
    objects,
    text_or_none,
    tokens_of,
    usage_of,
    without_tokens,
)

_NOT_JOINED = ("role", "id", "type", "name")


def assembled(events: Iterable[JSON]) -> JSON:
    """Return the answer that a stream of chunks represents, in the format of an answer without streaming."""
    answer: JSON = {}
    choices: dict[int, JSON] = {}
    for chunk in events:
        for name, value in chunk.items():
            if name != "choices" and value is not None:
                answer[name] = value
        for part in objects(chunk.get("choices")):
            _add(choices.setdefault(part.get("index") or 0, {"index": part.get("index") or 0, "message": {}}), part)
    if answer.get("object") == "chat.completion.chunk":
        answer["object"] = "chat.completion"
    if choices:
        answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _add(choice: JSON, part: JSON) -> None:
    for name, value in part.items():
        if value is None or name == "index":
            continue
        if name == "delta" and isinstance(value, dict):
            _join(choice["message"], value)
        elif name == "logprobs" and isinstance(value, dict):
            kept = choice.setdefault("logprobs", {})
            for kind, entries in value.items():
                if isinstance(entries, list):
                    kept[kind] = [*(kept.get(kind) or ()), *entries]
        elif name == "token_ids" and isinstance(value, list):
            choice["token_ids"] = [*choice.get("token_ids", ()), *value]
        else:
            choice[name] = value


def _join(message: JSON, delta: JSON) -> None:
    """Add a delta to a message: texts are appended, entries of lists are joined by their index."""
    for name, value in delta.items():
        before = message.get(name)
        if value is None:
            message.setdefault(name, None)
        elif isinstance(value, str) and isinstance(before, str) and name not in _NOT_JOINED:
            message[name] = before + value
        elif isinstance(value, dict) and isinstance(before, dict):
            _join(before, value)
        elif isinstance(value, list):
            message[name] = _joined_list(before if isinstance(before, list) else [], value)
        elif value != "" or before is None:
            message[name] = value


def _joined_list(before: list[Any], parts: list[Any]) -> list[Any]:
    for part in parts:
        index = part.get("index") if isinstance(part, dict) else None
        found = next((each for each in before if isinstance(each, dict) and each.get("index") == index), None)
        if index is None or found is None:
            before = [*before, dict(part) if isinstance(part, dict) else part]
        else:
            _join(found, {name: value for name, value in part.items() if name != "index"})
    return before


def read(answer: JSON) -> Reading:
    """Return the content of an answer, and remove from it the tokens that the reading contains."""
    reading = Reading(text_or_none(answer.get("model")), error=error_of(answer))
    reading.usage = usage_of(answer.get("usage"), "prompt_tokens", "completion_tokens", "prompt_tokens_details")
    reading.prompt_ids = ids_of(answer.pop("prompt_token_ids", None))
    for choice in objects(answer.get("choices")):
        message = choice.get("message")
        for call in objects(message.get("tool_calls")) if isinstance(message, dict) else ():
            function = call.get("function")
            if isinstance(function, dict):
                reading.calls.append(call_of(call.get("id"), function.get("name"), function.get("arguments")))
        reading.finish_reason = reading.finish_reason or text_or_none(choice.get("finish_reason"))
        logprobs = choice.pop("logprobs", None)
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        found = tokens_of(choice.pop("token_ids", None), entries)
        if found is not None:
            reading.tokens.append(found)
        if (others := without_tokens(entries)) is not None:
            choice["logprobs"] = {"content": others}
    return reading


def text(answer: JSON) -> str:
    """Return the text of the first choice; empty if it has none."""
    for choice in objects(answer.get("choices")):
        message = choice.get("message")
        return (text_or_none(message.get("content")) or "") if isinstance(message, dict) else ""
    return ""
