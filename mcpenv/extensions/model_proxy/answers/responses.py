"""Answers of OpenAI's responses API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .reading import (
    JSON,
    Reading,
    added_tokens,
    call_of,
    error_of,
    objects,
    text_or_none,
    tokens_of,
    usage_of,
    without_tokens,
)

_CALLS = ("function_call", "custom_tool_call")


def assembled(events: Iterable[JSON]) -> JSON:
    """Return the answer that a stream represents: from its last event, or else assembled from its items."""
    answer: JSON = {}
    items: dict[int, JSON] = {}
    for event in events:
        kind = event.get("type")
        if isinstance(event.get("response"), dict):
            answer = event["response"]
        elif kind in ("response.output_item.added", "response.output_item.done") and isinstance(
            event.get("item"), dict
        ):
            items[_index(event)] = event["item"]
        elif kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
            _add(items, event)
        elif kind == "error":
            answer = {**answer, "error": event.get("error") or event}
    if items and not answer.get("output"):
        # Some servers omit the items from the last event, and a truncated stream has no last event.
        answer = {**answer, "output": [items[index] for index in sorted(items)]}
    return answer


def _index(event: JSON) -> int:
    index = event.get("output_index")
    return index if isinstance(index, int) else 0


def _add(items: dict[int, JSON], event: JSON) -> None:
    """Add a piece of text or of arguments to an item. The item's last event replaces it."""
    item, delta = items.setdefault(_index(event), {}), str(event.get("delta") or "")
    if event["type"] == "response.function_call_arguments.delta":
        item["arguments"] = f"{item.get('arguments') or ''}{delta}"
        return
    content = item.setdefault("content", [])
    if not content:
        content.append({"type": "output_text", "text": ""})
    content[-1]["text"] = f"{content[-1].get('text') or ''}{delta}"


def read(answer: JSON) -> Reading:
    """Return the content of an answer, and remove from it the tokens that the reading contains."""
    reading = Reading(text_or_none(answer.get("model")), error=error_of(answer))
    reading.usage = usage_of(answer.get("usage"), "input_tokens", "output_tokens", "input_tokens_details")
    details = answer.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    reading.finish_reason = text_or_none(reason) or text_or_none(answer.get("status"))
    entries: list[Any] = []
    for item in objects(answer.get("output")):
        if item.get("type") in _CALLS:
            given = item.get("arguments", item.get("input"))
            reading.calls.append(call_of(item.get("call_id"), item.get("name"), given))
        for part in objects(item.get("content")):
            found = part.pop("logprobs", None)
            entries += found if isinstance(found, list) else ()
            if (others := without_tokens(found)) is not None:
                part["logprobs"] = others
    tokens = tokens_of(None, entries)
    for holder in (answer, *objects(answer.get("output"))):
        prompt, added = added_tokens(holder)
        reading.prompt_ids, tokens = prompt or reading.prompt_ids, added or tokens
    if tokens is not None:
        reading.tokens.append(tokens)
    return reading


def text(answer: JSON) -> str:
    """Return the text of an answer; empty if it has none."""
    parts = [part for item in objects(answer.get("output")) for part in objects(item.get("content"))]
    return "".join(text_or_none(part.get("text")) or "" for part in parts)
