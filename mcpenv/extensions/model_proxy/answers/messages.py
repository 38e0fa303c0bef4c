"""Answers of Anthropic's messages API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mcpenv_client.types.model_turns import TurnUsage

from .reading import ADDED, JSON, Reading, added_tokens, call_of, error_of, objects, text_or_none, usage_of, whole

_JOINED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_PARTIAL = "partial_json"
_CACHES = ("cache_read_input_tokens", "cache_creation_input_tokens")


def assembled(events: Iterable[JSON]) -> JSON:
    """Return the answer that a stream of events represents, in the format of an answer without streaming."""
    answer: JSON = {}
    blocks: dict[Any, JSON] = {}
    for event in events:
        kind = event.get("type")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            answer = event["message"]
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            blocks[event.get("index")] = event["content_block"]
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            _add(blocks.setdefault(event.get("index"), {}), event["delta"])
        elif kind == "message_delta":
            answer |= event["delta"] if isinstance(event.get("delta"), dict) else {}
            answer |= {name: event[name] for name in ADDED if name in event}
            if isinstance(event.get("usage"), dict):
                answer["usage"] = {**(answer.get("usage") or {}), **event["usage"]}
        elif kind == "error":
            answer["error"] = event.get("error")
    if blocks:
        answer["content"] = [_finished(block) for block in blocks.values()]
    return answer


def _add(block: JSON, delta: JSON) -> None:
    kind = delta.get("type")
    if kind in _JOINED:
        name = _JOINED[kind]
        block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"
    elif kind == "input_json_delta":
        block[_PARTIAL] = f"{block.get(_PARTIAL) or ''}{delta.get(_PARTIAL) or ''}"
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]


def _finished(block: JSON) -> JSON:
    """Return a block with its input parsed. A truncated text that is not JSON stays unchanged."""
    text = block.pop(_PARTIAL, None)
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = text
    return block


def read(answer: JSON) -> Reading:
    """Return the content of an answer, and remove from it the tokens that the reading contains.

    This API has no tokens, but a server may add them.
    """
    reading = Reading(text_or_none(answer.get("model")), text_or_none(answer.get("stop_reason")), error_of(answer))
    reading.usage = _usage(answer.get("usage"))
    reading.prompt_ids, tokens = added_tokens(answer)
    reading.tokens = [] if tokens is None else [tokens]
    for block in objects(answer.get("content")):
        if block.get("type") == "tool_use":
            reading.calls.append(call_of(block.get("id"), block.get("name"), block.get("input")))
    return reading


def _usage(usage: Any) -> TurnUsage | None:
    """Return the usage. This API counts cached tokens separately."""
    found = usage_of(usage, "input_tokens", "output_tokens", "")
    if found is None:
        return None
    read_from, written = (whole(usage.get(name)) for name in _CACHES)
    found.cached_tokens = read_from
    if found.input_tokens is not None:
        found.input_tokens += (read_from or 0) + (written or 0)
    return found


def text(answer: JSON) -> str:
    """Return the text of an answer; empty if it has none."""
    return "".join(text_or_none(block.get("text")) or "" for block in objects(answer.get("content")))
