"""The turns of a model on a page: the messages of its chat, or its requests, with the steps that they led to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.records.chat import conversation_of, flat_text, steps_by_call
from mcpenv.extensions.records.chat import text_of as answer_of
from mcpenv.extensions.records.turns_and_steps import turns_and_steps
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import StepRecord

from .contents import Contents, json_of, line_of, text_of
from .markup import Child, el

_SHOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})


Turn = Mapping[str, Any] | tuple[int, ModelTurn] | StepRecord
"""A message of a chat, a request to a model with its index, or a step."""


def turns_of(episode: RecordedEpisode) -> Iterator[Turn]:
    """Yield the messages or requests and the steps of an episode, each once and in order.

    An answer equal to the result of its step is omitted. Steps that the chat lacks, of another caller, are placed by
    their number.
    """
    waiting = {step.call.step: step for step in episode.trajectory.steps}
    if episode.messages is not None:
        messages = conversation_of(episode)
        asked = steps_by_call(episode, messages)
        for message in messages:
            step = asked.get(str(message.get("tool_call_id")))
            if message["role"] != "tool" or step is None or flat_text(message["content"]) != answer_of(episode, step):
                yield message
            last = max((asked[call["id"]].call.step for call in calls_of(message) if call["id"] in asked), default=0)
            yield from [waiting.pop(number) for number in sorted(waiting) if number <= last]
    else:
        yield from turns_and_steps(episode)
        return
    yield from waiting.values()


def calls_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tool calls of a message."""
    return message.get("tool_calls") or ()


def request_element(number: int, turn: ModelTurn) -> Element:
    """Return a request to a model, with its answer and the calls in it. The request itself is only in the record."""
    usage = turn.usage
    facts_of_turn = [
        turn.model or "a model",
        "no answer" if turn.status is None else None if turn.status == 200 else f"status {turn.status}",
        turn.cut and f"cut by the {turn.cut}",
        usage and f"{_count(usage.input_tokens)} tokens in, {_count(usage.output_tokens)} out",
        f"{turn.duration_s:.2f} s",
    ]
    return el(
        "section",
        el("h3", f"Model, turn {number}"),
        el("p", ", ".join(each for each in facts_of_turn if each), class_="muted"),
        el("p", turn.error, class_="warn") if turn.error else None,
        *(
            el("p", "Calls ", el("code", f"{call.name} {line_of(call.arguments)}"), _made(call.step))
            for call in turn.calls
        ),
        el("details", el("summary", "Answer"), json_of(turn.answer)) if turn.answer is not None else None,
        class_="card turn",
    )


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else str(tokens)


def _made(step: int | None) -> str:
    return "" if step is None else f" (step {step})"


def message_element(message: Mapping[str, Any], contents: Contents) -> Element:
    """Return a message of a chat."""
    role, said = str(message["role"]), message.get("content")
    parts: list[Child] = [el("h3", _NAMES.get(role, role))]
    if isinstance(said, list):
        parts += [contents.part(part) for part in said]
    elif said:
        parts.append(text_of(str(said)))
    for call in calls_of(message):
        function = call["function"]
        parts.append(el("p", "Calls ", el("code", f"{function['name']} {line_of(function['arguments'])}")))
    for name, value in message.items():
        if name not in _SHOWN and value not in (None, "", [], {}):
            shown = text_of(value) if isinstance(value, str) else json_of(value)
            parts.append(el("details", el("summary", name.replace("_", " ")), shown))
    return el("section", *parts, class_="card turn" if role == "assistant" else "card")


_NAMES = {
    "assistant": "Model",
    "user": "User",
    "system": "System prompt",
    "developer": "System prompt",
    "tool": "Answer to the model",
}
