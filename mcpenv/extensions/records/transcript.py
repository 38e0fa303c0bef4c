"""The transcript of an episode: what was said, called and done, in order, in one form for every API of models."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.formats.images import block_of
from mcpenv_client.types.model_turns import CONVERSATION, Api, ModelTurn, TurnCall

from .chat import call_id_of, conversation_of, flat_text, recorded_prompt, steps_by_call
from .chat import text_of as answer_of
from .turns_and_steps import turns_and_steps

Entry = dict[str, Any]
"""``{"step": 3}`` for a step of the episode, or a message.

A message has ``role`` (``task``, ``system``, ``user``, ``assistant`` or ``tool``), ``parts``, and for a model's answer
``turn``, its index among the turns. A part has a ``type``: ``text``, ``thought`` and ``error`` have ``text``; ``call``
has ``name``, ``arguments`` and ``step`` (None if no step made it); ``result`` has ``parts``; ``image`` is a block of
MCP content; ``data`` has ``value``, which none of these is.
"""

Part = dict[str, Any]

_SYSTEM = ("system", "instructions", "systemInstruction", "system_instruction")
_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal"})
_CALLS = frozenset({"tool_use", "function_call", "custom_tool_call"})
_RESULTS = frozenset({"tool_result", "function_call_output", "custom_tool_call_output"})
_SHOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning"})
_ROLES = {"model": "assistant", "developer": "system", "function": "tool"}


def transcript_of(episode: RecordedEpisode) -> list[Entry]:
    """Return the messages and steps of an episode, each once.

    A tool's result that equals the result of its step is omitted. Of each request to a model only what is new is shown.
    Steps that the chat lacks, of another caller, are placed by their number.
    """
    entries = list(_of_messages(episode) if episode.messages is not None else _of_turns(episode))
    task = episode.trajectory.task
    told = [part.get("text", "") for entry in entries for part in entry.get("parts", ())]
    prompts = dict.fromkeys([task.prompt if task else None, recorded_prompt(episode.trajectory)])
    missing = [_text(prompt) for prompt in prompts if prompt and not any(prompt in text for text in told)]
    if missing:
        return [{"role": "task", "parts": missing}, *entries]
    # The prompt stands first, also if steps were made before a model was asked.
    begun = sum(1 for _ in itertools.takewhile(lambda entry: "step" in entry, entries))
    told_by = next((at for at, entry in enumerate(entries) if "turn" in entry), begun)
    return [*entries[begun:told_by], *entries[:begun], *entries[told_by:]]


def _of_messages(episode: RecordedEpisode) -> Iterator[Entry]:
    waiting = sorted(step.call.step for step in episode.trajectory.steps)
    messages = conversation_of(episode)
    asked = steps_by_call(episode, messages)
    for message in messages:
        step = asked.get(str(message.get("tool_call_id")))
        if message["role"] != "tool" or step is None or flat_text(message["content"]) != answer_of(episode, step):
            role, parts = _message(message)
            for part in parts:
                if part["type"] == "call" and part["id"] in asked:
                    part["step"] = asked[part["id"]].call.step
            more = {name: value for name, value in message.items() if name not in _SHOWN and value}
            yield {"role": role, "parts": [*parts, _data(more)] if more else parts}
        called = [asked[call["id"]].call.step for call in message.get("tool_calls") or () if call["id"] in asked]
        while called and waiting and waiting[0] <= max(called):
            yield {"step": waiting.pop(0)}
    yield from ({"step": number} for number in waiting)


def _of_turns(episode: RecordedEpisode) -> Iterator[Entry]:
    seen: set[str] = set()
    stepped: set[str] = set()
    made_up: set[str] = set()
    for each in turns_and_steps(episode):
        if not isinstance(each, tuple):
            yield {"step": each.call.step}
            made_up.add(call_id_of(each))
            continue
        number, turn = each
        for role, parts in _joined(_asked(turn)):
            parts = [part for part in parts if part["type"] != "result" or str(part["id"]) not in stepped]
            key = _key(role, parts)
            # The conversation is sent again and again: answers always, the rest if the agent has changed an early part.
            again = key in seen and (role == "assistant" or turn.repeated is None)
            seen.add(key)
            parts = [part for part in parts if str(part.get("id")) not in made_up]
            if parts and not again:
                yield {"role": role, "parts": parts}
        calls = iter(turn.calls)
        for parts in _answers(turn):
            seen.add(_key("assistant", parts))
            for part in parts:
                if part["type"] == "call" and (call := next(calls, None)) is not None:
                    part["step"] = call.step
            yield {"role": "assistant", "turn": number, "parts": parts}
        stepped |= {call.id or call.name for call in turn.calls if call.step is not None}


def _asked(turn: ModelTurn) -> Iterator[tuple[str, list[Part]]]:
    """Yield the messages of a request that no earlier one has."""
    for name in _SYSTEM:
        if turn.request.get(name):
            yield "system", _message({"content": turn.request[name]})[1]
    conversation = turn.request.get(CONVERSATION[turn.api]) or []
    for message in conversation if isinstance(conversation, list) else [conversation]:
        yield _message(message)


def _answers(turn: ModelTurn) -> Iterator[list[Part]]:
    """Yield the answers of a turn: several if several were asked for, one with its error if there is none."""
    found = [parts for message in _messages_of(turn.api, turn.answer) if (parts := _message(message)[1])]
    if not found and turn.answer:  # of a form that is not known
        found = [
            [_data(turn.answer), *(_call(call.id, {"name": call.name, "args": call.arguments}) for call in turn.calls)]
        ]
    problems = [turn.error, turn.cut and f"The {turn.cut} closed the connection before the end of the answer."]
    if not found and not any(problems):
        problems.append(f"No answer, with the status {turn.status}." if turn.status else "No answer.")
    errors = [{"type": "error", "text": problem} for problem in problems if problem]
    yield [*(found[0] if found else []), *errors]
    yield from found[1:]


def _messages_of(api: Api, answer: Any) -> Iterator[Any]:
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, Mapping):
        if api == "messages":
            yield answer
        elif api == "responses":
            yield {"content": answer.get("output")}
        else:
            names = ("choices", "message") if api == "chat_completions" else ("candidates", "content")
            for each in _list(answer.get(names[0])):
                yield each.get(names[1]) if isinstance(each, Mapping) else each


def _joined(messages: Iterator[tuple[str, list[Part]]]) -> Iterator[tuple[str, list[Part]]]:
    """Yield messages with neighbours of one role joined: the responses API has an item for each part."""
    last: tuple[str, list[Part]] | None = None
    for role, parts in messages:
        if last is not None and last[0] == role:
            last = role, last[1] + parts
        else:
            if last is not None:
                yield last
            last = role, parts
    if last is not None:
        yield last


def _message(message: Any) -> tuple[str, list[Part]]:
    """Return the role and the parts of a message, or of an item that stands for one."""
    if not isinstance(message, Mapping):
        return "user", _parts(message)
    kind = message.get("type")
    if kind in _CALLS or kind == "reasoning":
        return "assistant", _parts([message])
    if kind in _RESULTS:
        return "tool", _parts([message])
    role = str(message.get("role") or "user")
    parts = _parts(message.get("content", message.get("parts")))
    if role in ("tool", "function"):
        parts = [{"type": "result", "id": message.get("tool_call_id"), "parts": parts}]
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str):
        parts.insert(0, {"type": "thought", "text": thought})
    for call in _list(message.get("tool_calls")):
        function = call.get("function") if isinstance(call, Mapping) else None
        parts += [_call(call.get("id"), function)] if isinstance(function, Mapping) else [_data(call)]
    if parts and all(part["type"] == "result" for part in parts):
        role = "tool"
    return _ROLES.get(role, role), parts


def _parts(content: Any) -> list[Part]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [_text(content)]
    if isinstance(content, Mapping):  # Gemini's system instruction
        return _parts(content.get("parts", [content]))
    return [part for block in _list(content) for part in _block(block)]


def _block(block: Any) -> list[Part]:
    if not isinstance(block, Mapping):
        return _parts(str(block))
    kind, said = block.get("type"), block.get("text")
    if kind == "message":
        return _parts(block.get("content"))
    if kind in _CALLS:
        return [_call(block.get("call_id") or block.get("id"), block)]
    if kind in _RESULTS:
        answer = block.get("output", block.get("content"))
        return [{"type": "result", "id": block.get("call_id") or block.get("tool_use_id"), "parts": _parts(answer)}]
    if isinstance(block.get("functionCall"), Mapping):
        return [_call(block["functionCall"].get("id"), block["functionCall"])]
    if isinstance(block.get("functionResponse"), Mapping):
        response = block["functionResponse"]
        name = response.get("id") or response.get("name")
        return [{"type": "result", "id": name, "parts": [_data(response.get("response"))]}]
    if kind in ("reasoning", "thinking") or block.get("thought") is True:
        thoughts = [
            *_parts(block.get("summary")),
            *_parts(block.get("content")),
            *_parts(block.get("thinking") or said),
        ]
        return [{"type": "thought", "text": part["text"]} for part in thoughts if part.get("text")]
    if (kind in _TEXTS or kind is None) and isinstance(said or block.get("refusal"), str):
        return [_text(said or block["refusal"])]
    image = _image(block)
    return [_data(dict(block)) if image is None else image]


def _image(block: Mapping[str, Any]) -> Part | None:
    """Return an image as a block of MCP content; None if there is none, or only its address."""
    source, inline, url = block.get("source"), block.get("inlineData"), block.get("image_url")
    if isinstance(source, Mapping) and source.get("type") == "base64":
        return {"type": "image", "mimeType": source.get("media_type"), "data": source.get("data")}
    if isinstance(inline, Mapping):
        return {"type": "image", "mimeType": inline.get("mimeType"), "data": inline.get("data")}
    return block_of({"image_url": {"url": url}} if isinstance(url, str) else block)


def _call(call_id: Any, call: Mapping[str, Any]) -> Part:
    given: Any = next((call[name] for name in ("arguments", "input", "args") if name in call), {})
    if isinstance(given, str):
        with contextlib.suppress(ValueError):  # the model wrote no JSON: its text is shown
            given = json.loads(given)
    return {"type": "call", "id": call_id, "name": str(call.get("name")), "arguments": given, "step": None}


def _kept(call: TurnCall) -> Part:
    return _call(call.id, {"name": call.name, "args": call.arguments})


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _data(value: Any) -> Part:
    return {"type": "data", "value": value}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _key(role: str, parts: Sequence[Part]) -> str:
    """Return what makes a message equal to another one: agents drop thoughts and blanks when they send it again."""
    told: list[Any] = [role]
    for part in parts:
        if part["type"] == "call":
            told.append([part["name"], part["arguments"]])
        elif part["type"] not in ("thought", "error"):
            told.append(part.get("text", "").strip() or part.get("value") or part.get("parts") or part.get("data"))
    return json.dumps(told, sort_keys=True, default=str)
