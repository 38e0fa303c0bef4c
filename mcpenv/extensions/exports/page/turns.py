"""The messages of an episode's transcript on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv_client.types.model_turns import ModelTurn

from .contents import Contents, json_of, line_of, text_of
from .markup import Child, el

_LONG = 2000


def message_element(entry: Mapping[str, Any], turns: Sequence[ModelTurn], contents: Contents) -> Element:
    """Return a message. Requests to a model and tokens are only in the record.

    Args:
        turns: the turns of the model, for the entry's ``turn``.
    """
    role = str(entry["role"])
    turn = turns[entry["turn"]] if "turn" in entry else None
    parts = [each for part in entry["parts"] for each in _part(part, contents)]
    if role == "system" and sum(len(part.get("text", "")) for part in entry["parts"]) > _LONG:
        return el("details", el("summary", _NAMES[role]), *parts, class_="card")
    return el(
        "section",
        el("h3", _NAMES.get(role, role) if turn is None else f"Model, turn {entry['turn']}"),
        None if turn is None else el("p", _facts(turn), class_="muted"),
        *parts,
        class_="card turn" if role == "assistant" else "card",
    )


def _part(part: Mapping[str, Any], contents: Contents) -> list[Child]:
    kind = part["type"]
    if kind == "text":
        return [text_of(part["text"])]
    if kind == "thought":
        return [el("details", el("summary", "Thought"), text_of(part["text"]))]
    if kind == "error":
        return [el("p", part["text"], class_="warn")]
    if kind == "call":
        made = "" if part["step"] is None else f" (step {part['step']})"
        return [el("p", "Calls ", el("code", f"{part['name']} {line_of(part['arguments'])}"), made)]
    if kind == "result":
        return [each for inner in part["parts"] for each in _part(inner, contents)]
    return [contents.block(part) if kind == "image" else json_of(part["value"])]


def _facts(turn: ModelTurn) -> str:
    usage = turn.usage
    told = [
        turn.model or "a model",
        "no answer" if turn.status is None else None if turn.status == 200 else f"status {turn.status}",
        usage and f"{_count(usage.input_tokens)} tokens in, {_count(usage.output_tokens)} out",
        f"{turn.duration_s:.2f} s",
    ]
    return ", ".join(each for each in told if each)


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


_NAMES = {
    "task": "Task",
    "assistant": "Model",
    "user": "User",
    "system": "System prompt",
    "tool": "Answer to the model",
}
