"""The messages of a long episode, and the tools with which a model drops old messages and finds them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .errors import MalformedToolCall
from .formats.images import without_images
from .types.tools import Tool

Message = Mapping[str, Any]

CHECK, MANAGE, SEARCH = "check_context", "manage_context", "search_history"

MAX_ANSWER = 6000
"""Maximum characters of an answer of the tools."""

MAX_MATCHES = 10
AROUND = 150
"""Maximum matches of a page of `search_history`, and characters shown around each."""

CHARACTERS_PER_TOKEN = 4
"""An estimate, used until the API has counted the tokens of a request."""

TOKENS_PER_IMAGE = 1000
"""An estimate for one image, such as a screenshot. Its data is not text, and does not count."""

_NUMBER = {"type": "integer", "minimum": 1}


@cache
def _tools() -> tuple[Tool, ...]:
    """Return the tools. `ContextManager.answer` answers them; they are not steps of the environment.

    Created on first use: importing the package must not build a model.
    """
    return (
        Tool(
            name=CHECK,
            description="See how full your context is, which turns of this conversation it has, and which long outputs "
            "of tools can still be read.",
            input_schema={"type": "object", "properties": {}, "additionalProperties": False},
            annotations={"readOnlyHint": True},
        ),
        Tool(
            name=MANAGE,
            description="Drop old turns of this conversation to make room. A turn is one answer of yours with the "
            "results of its tool calls. The task stays. search_history still finds what was dropped. Give one of the "
            "arguments.",
            input_schema={
                "type": "object",
                "properties": {
                    "keep_recent_turns": {
                        **_NUMBER,
                        "description": "Drop all but so many turns, the running one included",
                    },
                    "drop_turns": {
                        "type": "array",
                        "items": _NUMBER,
                        "description": "Drop the turns with these numbers",
                    },
                },
                "additionalProperties": False,
            },
        ),
        Tool(
            name=SEARCH,
            description="Find text in this whole conversation, dropped turns included; or read a turn again.",
            input_schema={
                "type": "object",
                "properties": {
                    "text": {"type": "string", "minLength": 1, "description": "The text to find; case does not matter"},
                    "turn": {**_NUMBER, "description": "Search only this turn; without a text, read it"},
                    "start": {
                        "type": "integer",
                        "minimum": 0,
                        "default": 0,
                        "description": "Matches to skip; without a text, the character of the turn at which to begin",
                    },
                },
                "additionalProperties": False,
            },
            annotations={"readOnlyHint": True},
        ),
    )


@dataclass
class _Turn:
    """An answer of the model, with all messages until its next answer."""

    number: int
    messages: list[Message]
    open_calls: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    dropped: bool = False


class ContextManager:
    """The messages of one episode, and the part of them that the model has chosen to see.

    The messages before the model's first answer (system, task) always stay. After them, each answer begins a turn,
    which is kept or dropped as a whole, so that no result loses its call. The current turn is always kept. It works for
    messages of any API that have a ``role``, and in which the results of calls follow the answer that made them.

    Not safe for concurrent calls.

    Args:
        limit_tokens: the size of the model's context in tokens; None: unknown.
        count_tokens: estimates the tokens of one message.

    Attributes:
        limit_tokens: as given.
        drops: the dropped turns: ``{"turn": N, "dropped": [...]}`` for each call of `manage_context`, with N its turn.
    """

    def __init__(
        self, limit_tokens: int | None = None, *, count_tokens: Callable[[Message], int] | None = None
    ) -> None:
        if limit_tokens is not None and limit_tokens < 1:
            raise ValueError(f"limit_tokens is {limit_tokens}; it must be 1 or more")
        self.limit_tokens = limit_tokens
        self.drops: list[dict[str, Any]] = []
        self._count = count_tokens or estimated_tokens
        self._head: list[Message] = []
        self._turns: list[_Turn] = []
        self._counted: tuple[int, int] = (0, 0)
        self._outputs: dict[str, Mapping[str, Any]] = {}

    @property
    def tools(self) -> list[Tool]:
        """The tools for the model, in addition to the environment's tools."""
        return list(_tools())

    @property
    def history(self) -> list[Message]:
        """All messages."""
        return [*self._head, *(message for turn in self._turns for message in turn.messages)]

    @property
    def visible(self) -> list[Message]:
        """The messages for the next request."""
        return [*self._head, *(message for turn in self._turns if not turn.dropped for message in turn.messages)]

    def owns(self, name: str) -> bool:
        """Return True if a tool is answered here, and not by the environment."""
        return any(tool.name == name for tool in _tools())

    def add(self, message: Message, output: Mapping[str, Any] | None = None) -> None:
        """Add a message.

        Args:
            message: of the model, or following its answer: results of calls, messages of a user.
            output: the environment's data about a cut result (`OUTPUT_META` in the metadata of the `ToolResult`).

        Raises:
            ValueError: it is a ``tool`` message without its call, which APIs refuse.
        """
        role = message.get("role")
        if role in ("assistant", "model"):
            calls = [call["id"] for call in message.get("tool_calls") or () if isinstance(call.get("id"), str)]
            self._turns.append(_Turn(len(self._turns) + 1, [message], calls))
            return
        if role == "tool":
            called = self._turns[-1].open_calls if self._turns else []
            if message.get("tool_call_id") not in called:
                raise ValueError(f"the result of call {message.get('tool_call_id')!r} does not follow its call")
            called.remove(message["tool_call_id"])
        if not self._turns:
            self._head.append(message)
            return
        turn = self._turns[-1]
        turn.messages.append(message)
        if output is not None and isinstance(output.get("id"), str):
            turn.outputs.append(output["id"])
            self._outputs[output["id"]] = output

    def used(self, prompt_tokens: int) -> None:
        """Record the tokens of the last request, as the API counted them. Call it before adding its answer."""
        if prompt_tokens > 0:
            self._counted = prompt_tokens, self._estimate(self.visible)

    @property
    def tokens(self) -> int:
        """The tokens of the next request: an estimate, scaled by the API's last count."""
        estimate = self._estimate(self.visible)
        real, estimated = self._counted
        return estimate if not estimated else round(estimate * real / estimated)

    def answer(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a call of one of the `tools`. Dropped turns are missing from `visible` from then on.

        Raises:
            MalformedToolCall: the arguments cannot be used.
            ValueError: the tool is not one of them.
        """
        if name == CHECK:
            _refuse_others(name, arguments, ())
            return self._check()
        if name == MANAGE:
            _refuse_others(name, arguments, ("keep_recent_turns", "drop_turns"))
            return self._manage(arguments)
        if name == SEARCH:
            _refuse_others(name, arguments, ("text", "turn", "start"))
            return self._search(arguments)
        raise ValueError(f"{name!r} is not a tool of the context manager")

    def to_plain(self) -> dict[str, Any]:
        """Return the record of dropped turns, as plain JSON data; `messages_at` reads it."""
        return {"limit_tokens": self.limit_tokens, "drops": self.drops}

    def _estimate(self, messages: Iterable[Message]) -> int:
        return sum(map(self._count, messages))

    # -- check_context

    def _check(self) -> str:
        visible = [turn for turn in self._turns if not turn.dropped]
        dropped = [turn.number for turn in self._turns if turn.dropped]
        lines = [
            f"This is turn {len(self._turns)}. {len(visible)} of {len(self._turns)} turns are in your context"
            + (f"; dropped: {_ranges(dropped)}." if dropped else "."),
            self._fullness(),
        ]
        sizes = sorted(((self._estimate(turn.messages), turn.number) for turn in visible[:-1]), reverse=True)[:5]
        if sizes:
            largest = ", ".join(f"turn {number} ({tokens} tokens)" for tokens, number in sizes)
            lines.append(f"The largest turns: {largest}.")
        if self._outputs:
            kept = ", ".join(
                f"{id} (turn {turn.number}, {self._outputs[id].get('characters')} characters)"
                for turn in self._turns
                for id in turn.outputs
                if self._outputs[id].get("kept", True)
            )
            lines.append(f"Long outputs, which search_tool_output and view_tool_output read: {kept}.")
        return _cut("\n".join(lines))

    def _fullness(self) -> str:
        tokens = self.tokens
        if self.limit_tokens is None:
            return f"It has about {tokens} tokens."
        share = tokens / self.limit_tokens
        advice = ""
        if share >= 0.9:
            advice = f" Drop turns now with {MANAGE}."
        elif share >= 0.7:
            advice = f" Drop turns that you need no more with {MANAGE} soon."
        return f"It has about {tokens} of {self.limit_tokens} tokens ({share:.0%}).{advice}"

    # -- manage_context

    def _manage(self, arguments: Mapping[str, Any]) -> str:
        keep, drop = arguments.get("keep_recent_turns"), arguments.get("drop_turns")
        if (keep is None) == (drop is None):
            raise MalformedToolCall(MANAGE, "Give either keep_recent_turns or drop_turns.")
        running = len(self._turns)
        if keep is not None:
            keep = _whole(MANAGE, "keep_recent_turns", keep, 1)
            numbers = list(range(1, running - keep + 1))
        else:
            if not isinstance(drop, Sequence) or isinstance(drop, str) or not drop:
                raise MalformedToolCall(MANAGE, "drop_turns is not a list of turn numbers.")
            numbers = sorted({_whole(MANAGE, "drop_turns", number, 1) for number in drop})
            if numbers[-1] >= running:
                raise MalformedToolCall(
                    MANAGE, f"Turn {numbers[-1]} cannot be dropped: turn {running} is the running one, which stays."
                )
        numbers = [number for number in numbers if not self._turns[number - 1].dropped]
        if not numbers:
            return f"Nothing was dropped: those turns are gone already. {self._fullness()}"
        for number in numbers:
            self._turns[number - 1].dropped = True
        self.drops.append({"turn": running, "dropped": numbers})
        return _cut(f"Dropped: {_ranges(numbers)}. {SEARCH} still finds them. {self._fullness()}")

    # -- search_history

    def _search(self, arguments: Mapping[str, Any]) -> str:
        text, start = arguments.get("text"), _whole(SEARCH, "start", arguments.get("start") or 0, 0)
        turns = self._turns
        if (number := arguments.get("turn")) is not None:
            number = _whole(SEARCH, "turn", number, 1)
            if number > len(turns):
                raise MalformedToolCall(SEARCH, f"There is no turn {number}; this is turn {len(turns)}.")
            turns = [turns[number - 1]]
        if text is None:
            if number is None:
                raise MalformedToolCall(SEARCH, "Give a text to find, or a turn to read.")
            return _page(turns[0], start)
        if not isinstance(text, str) or not text:
            raise MalformedToolCall(SEARCH, "text is not a text with at least one character.")
        found = [match for turn in turns for match in _matches(turn, text)]
        if not found:
            return f"No match for {text[:100]!r}."
        lines = [f"{len(found)} match{'' if len(found) == 1 else 'es'}."]
        shown, taken = 0, 0
        for match in found[start : start + MAX_MATCHES]:
            taken += len(match)
            if shown and taken > MAX_ANSWER - 500:
                break
            lines.append(match)
            shown += 1
        if start + shown < len(found):
            lines.append(f"There are more: search again with start={start + shown}.")
        return _cut("\n".join(lines))


def messages_at(messages: Sequence[Message], record: Mapping[str, Any], turn: int) -> list[Message]:
    """Return the messages of a recorded conversation that the model had when it gave its answer number ``turn``.

    Args:
        messages: the whole conversation, such as `RecordedEpisode.messages`.
        record: the result of `ContextManager.to_plain`, such as ``RecordedEpisode.extra["context"]``.
        turn: from 1.
    """
    gone = {number for drop in record["drops"] if drop["turn"] < turn for number in drop["dropped"]}
    kept, number = [], 0
    for message in messages:
        number += message.get("role") in ("assistant", "model")
        if number >= turn:
            break
        if number not in gone:
            kept.append(message)
    return kept


def estimated_tokens(message: Message) -> int:
    """Return a rough number of tokens of a message."""
    texts, images = without_images(message)
    characters = len(json.dumps(texts, ensure_ascii=False, default=str))
    return characters // CHARACTERS_PER_TOKEN + 1 + images * TOKENS_PER_IMAGE


def _texts(turn: _Turn) -> list[tuple[str, str]]:
    """Return the texts of a turn, each with the name of its origin."""
    texts = []
    names = {
        call.get("id"): call.get("function", {}).get("name", "a tool")
        for message in turn.messages
        for call in message.get("tool_calls") or ()
    }
    for message in turn.messages:
        origin = str(message.get("role"))
        if "tool_call_id" in message:
            origin = f"result of {names.get(message['tool_call_id'], 'a tool')}"
        content, _ = without_images(message.get("content", message.get("parts")))
        if content:
            shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
            texts.append((origin, shown))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            texts.append((f"call of {function.get('name')}", str(function.get("arguments", ""))))
    return texts


def _matches(turn: _Turn, text: str) -> list[str]:
    found = []
    wanted = text.casefold()
    for origin, whole in _texts(turn):
        if origin.endswith(f" of {SEARCH}"):
            continue  # otherwise the search for the next page would find a page of matches
        # Some characters become several by case folding, so that positions would not match the text.
        folded = whole.casefold() if len(whole.casefold()) == len(whole) else whole
        at = folded.find(wanted)
        while at >= 0:
            excerpt = whole[max(at - AROUND, 0) : at + len(wanted) + AROUND]
            found.append(f"[turn {turn.number}, {origin}] {excerpt}")
            at = folded.find(wanted, at + len(wanted) + AROUND)
    return found


def _page(turn: _Turn, start: int) -> str:
    whole = "\n".join(f"[{origin}] {text}" for origin, text in _texts(turn))
    end = min(start + MAX_ANSWER, len(whole))
    rest = "this is the end" if end >= len(whole) else f"go on with start={end}"
    return f"[turn {turn.number}: characters {min(start, end)} to {end} of {len(whole)}; {rest}]\n{whole[start:end]}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: turns 1 to 3, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts)
    return f"turn{'' if len(numbers) == 1 else 's'} {shown}"


def _whole(name: str, argument: str, value: Any, least: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MalformedToolCall(name, f"{argument} is not a whole number of {least} or more.")
    return value


def _refuse_others(name: str, arguments: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = sorted(arguments.keys() - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise MalformedToolCall(name, f"There is no argument {unknown[0]!r}; {takes}.")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ANSWER else f"{text[: MAX_ANSWER - 20]} [and more]"
