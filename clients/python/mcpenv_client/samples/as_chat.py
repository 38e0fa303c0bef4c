"""Requests and answers of other APIs as those of chat completions, which chat templates take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcpenv_client.types.model_turns import Api

JSON = dict[str, Any]

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
_COUNTING = "x-anthropic-billing-header:"
"""Begins a block in which Claude Code counts its requests. Servers of models remove it."""


class NotExpressed(ValueError):
    """A part of a conversation that no chat template can express. The message names it."""


def as_chat(api: Api, request: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[JSON, JSON]:
    """Return a request and its answer as those of chat completions.

    Thoughts become ``reasoning_content``. Tools that are not functions, such as a search that the endpoint runs, are
    omitted, as servers of models omit them.

    Raises:
        NotExpressed: a part has no form in chat completions: an image, an encrypted thought, a call of a tool that is
            not a function, thoughts between calls of one answer, a conversation that the endpoint keeps.
    """
    if api == "chat_completions":
        return dict(request), dict(answer)
    if api not in _READERS:
        raise NotExpressed(f"a conversation of {api}")
    return _READERS[api](request, answer)


def _messages(request: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[JSON, JSON]:
    system = request.get("system") or ()
    blocks = [system] if isinstance(system, str) else system
    said = [text for block in blocks if not (text := _text(block, "system")).startswith(_COUNTING)]
    chat: list[JSON] = [{"role": "system", "content": "".join(said)}] if said else []
    for message in request.get("messages") or ():
        chat += _message(message)
    tools = [
        _tool(each["name"], each.get("description"), each["input_schema"])
        for each in _objects(request.get("tools"))
        if "input_schema" in each
    ]
    cut = answer.get("stop_reason") == "max_tokens"
    return _chat(chat, tools, _blocks(answer.get("content")), cut=cut)


def _message(message: Mapping[str, Any]) -> Iterator[JSON]:
    role, content = str(message.get("role")), message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _objects(content)
    if role == "assistant":
        yield from _answers(_blocks(blocks))
        return
    texts: list[str] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if texts:
                yield {"role": role, "content": "".join(texts)}
                texts = []
            yield _result(block.get("tool_use_id"), block.get("content"))
        else:
            texts.append(_text(block, role))
    if texts:
        yield {"role": role, "content": "".join(texts)}


def _blocks(content: Any) -> Iterator[JSON]:
    """Yield the parts of an answer of the messages API as fields of an assistant's message."""
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else _objects(content):
        kind = block.get("type")
        if kind == "thinking" and block.get("thinking"):
            yield {"reasoning_content": block["thinking"]}
        elif kind in ("thinking", "redacted_thinking"):
            raise NotExpressed("an encrypted thought")
        elif kind == "tool_use":
            yield _call(block.get("id"), block.get("name"), block.get("input"))
        else:
            yield {"content": _text(block, "assistant")}


def _responses(request: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[JSON, JSON]:
    if request.get("previous_response_id") or request.get("conversation"):
        raise NotExpressed("a conversation that the endpoint keeps")
    given = request.get("input") or ()
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _objects(given)
    instructions = request.get("instructions")
    chat: list[JSON] = [{"role": "system", "content": instructions}] if instructions else []
    said: list[JSON] = []
    for item in items:
        if (parts := _written(item)) is not None:
            said += parts
            continue
        chat += _answers(said)
        said = []
        if item.get("type") == "function_call_output":
            chat.append(_result(item.get("call_id"), item.get("output")))
        elif item.get("type", "message") == "message":
            role = str(item.get("role"))
            chat.append({"role": role, "content": _flat(item.get("content"), role)})
        else:
            raise NotExpressed(f"an item of the type {item.get('type')}")
    chat += _answers(said)
    parts = [part for item in _objects(answer.get("output")) for part in _written(item, of_answer=True) or ()]
    details = answer.get("incomplete_details")
    cut = isinstance(details, Mapping) and details.get("reason") == "max_output_tokens"
    return _chat(chat, list(_functions(request.get("tools"))), parts, cut=cut)


def _functions(tools: Any, space: str = "") -> Iterator[JSON]:
    for each in _objects(tools):
        if each.get("type") == "namespace":
            yield from _functions(each.get("tools"), str(each.get("name")))
        elif each.get("type") == "function":
            yield _tool(_named(each, space), each.get("description"), each.get("parameters"))


def _named(function: Mapping[str, Any], space: Any) -> str:
    """Return the name of a function. Codex has those of a server in a namespace, and else the same in front of them."""
    return f"{space}__{function.get('name')}" if space else str(function.get("name"))


def _written(item: Mapping[str, Any], *, of_answer: bool = False) -> list[JSON] | None:
    """Return an item of the model as fields of an assistant's message; None if another wrote it."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        # What an endpoint calls a summary is the thought itself, unless it keeps that encrypted.
        texts = [part.get("text") for part in _objects(item.get("content")) or _objects(item.get("summary"))]
        if item.get("encrypted_content") and not item.get("content"):
            raise NotExpressed("an encrypted thought")
        return [{"reasoning_content": "".join(map(str, texts))}] if texts else []
    if kind == "function_call":
        return [_call(item.get("call_id"), _named(item, item.get("namespace")), item.get("arguments"))]
    if kind == "message" and item.get("role") == "assistant":
        return [{"content": _flat(item.get("content"), "assistant")}]
    if of_answer or str(kind).endswith("_call"):
        raise NotExpressed(f"an item of the type {kind}")
    return None


_Reader = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[JSON, JSON]]
_READERS: dict[Api, _Reader] = {"messages": _messages, "responses": _responses}


def _chat(messages: list[JSON], tools: list[JSON], parts: Iterable[JSON], *, cut: bool) -> tuple[JSON, JSON]:
    if messages and messages[-1]["role"] == "assistant":
        raise NotExpressed("an answer that the agent began")
    answers = _answers(parts)
    if len(answers) > 1:
        raise NotExpressed("a thought or a text after a call in one answer")
    message = answers[0] if answers else {"role": "assistant", "content": ""}
    choice = {"message": message, "finish_reason": "length" if cut else "stop"}
    return {"messages": messages, **({"tools": tools} if tools else {})}, {"choices": [choice]}


_ORDER = ("reasoning_content", "content", "tool_calls")


def _answers(parts: Iterable[JSON]) -> list[JSON]:
    """Return the messages that parts of the model are. In each, thoughts come first and calls last."""
    found: list[JSON] = []
    last = len(_ORDER)
    for part in parts:
        ((name, value),) = part.items()
        if not value:
            continue
        place = _ORDER.index(name)
        if place < last:
            found.append({"role": "assistant", "content": ""})
        if place < last or name not in found[-1]:
            found[-1][name] = value
        else:
            found[-1][name] += value
        last = place
    return found


def _call(identity: Any, name: Any, arguments: Any) -> JSON:
    return {"tool_calls": [{"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}]}


def _result(identity: Any, content: Any) -> JSON:
    return {"role": "tool", "tool_call_id": identity, "content": _flat(content, "tool")}


def _tool(name: str, description: Any, parameters: Any) -> JSON:
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}


def _flat(content: Any, role: str) -> str:
    return "".join(_text(each, role) for each in (content if isinstance(content, Sequence) else ()) or ())


def _text(block: Any, role: str) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind in _TEXTS:
        return str(block.get("text", block.get("refusal", "")))
    if kind == "tool_reference":  # of Claude Code's tool search; the tool itself is among the tools from then on
        return str(block.get("tool_name"))
    raise NotExpressed(f"a part of the type {kind} in a message of the role {role}")


def _objects(values: Any) -> list[JSON]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
