"""A model endpoint that gives its tokens: it thinks, calls a tool twice in one answer, and then says so.

It speaks the streams of Anthropic's messages and OpenAI's responses. Tokens are the bytes of a text that it makes of a
request, so that an answer that comes back unchanged has the same tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from scripted_model import DONE, SEARCH, stream_of

JSON = dict[str, Any]
THOUGHT = "I shall count twice at once."
SUMMING = "Do NOT call any tools"
"""Stands in Claude Code's request for a summary."""

LOGPROB = -0.25


def answered(path: str, body: JSON, thought: str = THOUGHT) -> tuple[str | None, bytes]:
    """Return content type and body of the answer to one request, as `scripted_model.answered` does."""
    path = path.partition("?")[0]
    if path.endswith("/messages/count_tokens"):
        return "application/json", b'{"input_tokens": 10}'
    if path.endswith("/messages"):
        return _messages(body, thought)
    return stream_of(_responses(body)) if path.endswith("/responses") else (None, b"{}")


def without_ids(path: str, body: JSON) -> tuple[str | None, bytes]:
    """Return the same as `answered`, as of an endpoint that gives no tokens and encrypts no thoughts."""
    kind, answer = answered(path, body)
    for pattern, instead in (
        (rb', "(prompt_token_ids|token_ids|token_logprobs)": \[[^\]]*\]', b""),
        (rb', "encrypted_content": "scripted", "summary": (\[[^\]]*\])', rb', "summary": [], "content": \1'),
        (rb'"summary_text"', b'"reasoning_text"'),
    ):
        answer = re.sub(pattern, instead, answer)
    return kind, answer


def tokens(text: str) -> list[int]:
    return list(text.encode())


def _calls(names: Iterable[str], results: int) -> list[str]:
    """Return the names of the tools to call."""
    found = [name for name in names if name.endswith("add")]
    return found[:1] * 2 if found and results == 0 else []


# -- Anthropic's messages


def prompt_of_messages(body: JSON) -> str:
    """Return the text that a request's tokens stand for."""
    system = body.get("system") or []
    parts = [system] if isinstance(system, str) else [_without_header(block["text"]) for block in system]
    parts.append(json.dumps([[tool["name"], tool.get("input_schema")] for tool in body.get("tools", ())]))
    for message in body["messages"]:
        parts.append(f"\n{message['role']}:")
        content = message["content"]
        parts += [content] if isinstance(content, str) else [_block(block) for block in content]
    return "".join([*parts, "\nassistant:"])


def _without_header(text: str) -> str:
    """Return a text without the line that Claude Code counts its requests in, which servers of models remove."""
    return re.sub(r"x-anthropic-billing-header:[^\n]*\n?", "", text)


def _block(block: JSON) -> str:
    kept = {name: block[name] for name in ("type", "text", "thinking", "name", "input", "content") if name in block}
    return json.dumps(kept)


def _messages(body: JSON, thought: str) -> tuple[str, bytes]:
    blocks = [block for each in body["messages"] if isinstance(each["content"], list) for block in each["content"]]
    used = [block["name"] for block in blocks if block["type"] == "tool_use"]
    names = [tool["name"] for tool in body.get("tools", ())]
    deferred = re.search(r"mcp__\w+?__add\b", json.dumps(body))
    # When the conversation is compacted, a summary is asked for, which takes the place of the calls then.
    summed_up = any(sign in json.dumps(body["messages"][-1:]) for sign in (SUMMING, DONE))
    calls = _calls(names, sum(name.endswith("add") for name in used) + summed_up)
    content: list[JSON] = [
        {"type": "tool_use", "id": f"toolu_{len(blocks)}_{number}", "name": name, "input": {"by": 1}}
        for number, name in enumerate(calls)
    ]
    if content:
        content.insert(0, {"type": "thinking", "thinking": thought, "signature": "scripted"})
    elif SEARCH in names and deferred is not None and not used and not summed_up:
        given = {"query": f"select:{deferred[0]}"}
        content = [{"type": "tool_use", "id": "toolu_search", "name": SEARCH, "input": given}]
    else:
        content = [{"type": "text", "text": DONE}]
    given_ids, written = tokens(prompt_of_messages(body)), tokens("".join(map(_block, content)))
    usage = {"input_tokens": len(given_ids), "output_tokens": len(written)}
    message = {
        "id": f"msg_{len(blocks)}",  # Claude Code joins messages of one id
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": content,
        "stop_reason": "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn",
        "stop_sequence": None,
        "usage": usage,
        "prompt_token_ids": given_ids,
    }
    of_answer = {"token_ids": written, "token_logprobs": [LOGPROB] * len(written)}
    if not body.get("stream"):
        return "application/json", json.dumps({**message, **of_answer}).encode()
    events: list[JSON] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for index, block in enumerate(content):
        name, field, kind = {
            "text": ("text", "text", "text_delta"),
            "thinking": ("thinking", "thinking", "thinking_delta"),
            "tool_use": ("input", "partial_json", "input_json_delta"),
        }[block["type"]]
        value = block[name] if isinstance(block[name], str) else json.dumps(block[name])
        empty = {**block, name: {} if name == "input" else ""}
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: value}},
            {"type": "content_block_stop", "index": index},
        ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": usage, **of_answer})
    events.append({"type": "message_stop"})
    return stream_of([(event["type"], event) for event in events])


# -- OpenAI's responses


def prompt_of_responses(body: JSON) -> str:
    """Return the text that a request's tokens stand for."""
    given = body["input"] if isinstance(body["input"], list) else [{"type": "message", "content": body["input"]}]
    return "".join([body.get("instructions") or "", *map(_item, given), "\nassistant:"])


def _item(item: JSON) -> str:
    kept = {name: item[name] for name in ("type", "role", "name", "arguments", "output") if item.get(name) is not None}
    content = item.get("content")
    if isinstance(content, list):
        kept["content"] = [part.get("text") for part in content]
    elif content is not None:
        kept["content"] = content
    if item.get("summary"):
        kept["summary"] = [part["text"] for part in item["summary"]]
    # What the model wrote stands behind the mark of its turn, and what follows in front of the next.
    mark = "\nassistant:" if kept["type"] in ("function_call", "reasoning") or item.get("role") == "assistant" else "\n"
    return mark + json.dumps(kept, sort_keys=True)


def _responses(body: JSON) -> list[tuple[str | None, JSON]]:
    # A summary of what was done takes the place of results when the conversation is compacted.
    results = sum(item.get("type") == "function_call_output" for item in body["input"])
    results += DONE in json.dumps(body["input"])
    functions: list[tuple[str, str | None]] = []
    for tool in body.get("tools", ()):
        if tool.get("type") == "function":
            functions.append((tool["name"], None))
        functions += [(each["name"], tool["name"]) for each in tool.get("tools", ())]
    namespaces = dict(functions)
    items: list[JSON] = []
    for number, name in enumerate(_calls(namespaces, results)):
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
        item |= {"arguments": '{"by": 1}', "status": "completed"}
        if (namespace := namespaces[name]) is not None:
            item["namespace"] = namespace
        items.append(item)
    if items:
        thought: JSON = {"type": "reasoning", "id": "rs", "encrypted_content": "scripted"}
        items.insert(0, {**thought, "summary": [{"type": "summary_text", "text": THOUGHT}]})
    else:
        content = [{"type": "output_text", "text": DONE, "annotations": []}]
        items = [{"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}]
    given_ids = tokens(prompt_of_responses(body))
    written = tokens("".join(map(_item, items)).removeprefix("\nassistant:"))
    usage = {"input_tokens": len(given_ids), "output_tokens": len(written)}
    usage["total_tokens"] = sum(usage.values())
    response: JSON = {"id": f"resp_{results}", "object": "response", "status": "in_progress", "output": []}
    completed = {**response, "status": "completed", "output": items, "usage": usage, "prompt_token_ids": given_ids}
    completed |= {"token_ids": written, "token_logprobs": [LOGPROB] * len(written)}
    events: list[JSON] = [{"type": "response.created", "response": response}]
    for index, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": completed})
    return [(event["type"], event) for event in events]
