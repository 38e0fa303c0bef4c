"""Calls that models write as text: find them outside of thoughts, and type their arguments by the tools' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from mcpenv_client.types.values import MAX_DEPTH, decode

from .text_values import argument_schema, typed
from .tool_formats import ProviderTools

TextCalls = Literal["hermes", "qwen-xml", "mistral", "llama"]
"""How models write calls as text: ``<tool_call>`` with JSON (Hermes, Qwen), ``<tool_call>`` with ``<function=...>``
(Qwen3-Coder), ``[TOOL_CALLS]`` with a JSON list or with a name and JSON (Mistral), JSON objects with ``parameters``
at the beginning or after ``<|python_tag|>``, also in a list or a block of code (Llama 3)."""

Found = dict[str, Any] | str
"""A call with ``name`` and ``arguments`` or ``parameters``, or the reason why a call cannot be read."""

_THOUGHT = re.compile(
    r"<(/?)(?:\w+[:|])?(?:think|thinking|thoughts?|reasoning)(?:_\w+)?>|\[(/?)THINK\]|◁(/?)think▷"
    r"|<\|(?:START|(END))_THINKING\|>|<\|(?:begin|(end))_of_thought\|>",
    re.IGNORECASE,
)
"""The marks at the beginning and at the end of a thought. At an end, one of the groups is not empty."""

_BEGIN, _END = "<tool_call>", "</tool_call>"
_BEGINS = {
    "hermes": re.compile(_BEGIN),
    "qwen-xml": re.compile(rf"{_BEGIN}|<function=(?=[^<>]*>)"),
    "mistral": re.compile(r"\[TOOL_CALLS\]"),
    "llama": re.compile(r"<\|python_tag\|>|\{"),
}
_TAG = re.compile(f"{_BEGIN}|{_END}")
_FUNCTION = re.compile(r"<function=([^<>]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>]+)>\n?")
_OF_FUNCTION = re.compile(r"<parameter=[^<>]+>|</function>|</?tool_call>")
_AFTER_VALUE = re.compile(r"\s*(?:<parameter=[^<>]+>|</function>|</?tool_call>|\Z)")
_VALUE_END = "</parameter>"
_COMPACT = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?(?:\[ARGS\])?\s*(?=\{)")
_SPACE = re.compile(r"\s*")
_JSON = re.compile(r"[{\[]")
_BRACKET_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s;,}\[\]]|```(?:json)?)*")
"""Text between the JSON objects of Llama, and before the first: separators, and the marks of lists and of code."""

_MAX_QUOTED = 200


def calls_in(text: str, form: TextCalls, tools: ProviderTools) -> Iterator[Found]:
    """Yield the calls in a text, or the reason in place of a call that cannot be read.

    A call inside a thought is none. A thought that is not closed lasts to the end of the text. If the first mark of a
    thought is its end, the thought began in the prompt. Marks inside of JSON values are none.

    Raises:
        ValueError: there is no such form.
    """
    if form not in _BEGINS:
        raise ValueError(f"there are no text calls {form!r}. Use one of: {', '.join(get_args(TextCalls))}")
    yield from _Scan(text, form, tools).run()


class _Scan:
    """The scan of one text, from its beginning to its end.

    Each reader takes the position after the beginning of a call, and returns the calls with the position after them.
    """

    def __init__(self, text: str, form: TextCalls, tools: ProviderTools) -> None:
        self._text, self._form, self._tools = text, form, tools
        self._spoken = 0  # the position after the last thought, call or tag
        self._deep = 0  # up to here, text was found to be part of a JSON value that is nested too deeply

    def run(self) -> list[Found]:
        readers: dict[str, Callable[[int], tuple[list[Found], int]]] = {
            "hermes": self._hermes,
            "qwen-xml": self._xml,
            "mistral": self._mistral,
            "llama": self._llama,
        }
        read, begins = readers[self._form], _BEGINS[self._form]
        calls: list[Found] = []
        at, marks = 0, 0
        begin, mark = begins.search(self._text), _THOUGHT.search(self._text)
        while True:
            # Searched again only where a mark was passed: a text has many calls and few thoughts.
            if begin is not None and begin.start() < at:
                begin = begins.search(self._text, at)
            if mark is not None and mark.start() < at:
                mark = _THOUGHT.search(self._text, at)
            if mark is not None and (begin is None or mark.start() < begin.start()):
                marks += 1
                if any(mark.groups()):
                    calls = calls if marks > 1 else []
                    at = mark.end()
                else:
                    at = self._after_thought(mark.end())
                self._spoken = at
            elif begin is not None and begin[0] == "<|python_tag|>":
                self._spoken = at = begin.end()
            elif begin is not None:
                start = begin.start() if begin[0] in ("{", "<function=") else begin.end()
                found, at = read(start)
                calls += found
            else:
                return calls

    def _after_thought(self, at: int) -> int:
        """Return the position after the end of a thought. Marks inside of JSON values do not end it."""
        mark = _THOUGHT.search(self._text, at)
        while mark is not None:
            value = _JSON.search(self._text, at, mark.start())
            if value is None and any(mark.groups()):
                return mark.end()
            at = mark.end() if value is None else self._past_json(value.start())
            if mark.start() < at:
                mark = _THOUGHT.search(self._text, at)
        return len(self._text)

    def _past_json(self, at: int) -> int:
        """Return the position after the JSON value at a position, or the next position if there is none."""
        try:
            return self._json(at)[1]
        except ValueError:
            return at + 1

    def _json(self, at: int) -> tuple[Any, int]:
        """Return the JSON value at a position, and the position after it.

        Raises:
            ValueError: there is none.
        """
        at = self._past_space(at)
        if at < self._deep:
            raise ValueError("it is nested too deeply")
        end = len(self._text)
        try:
            _, end = json.JSONDecoder().raw_decode(self._text, at)
            return decode(self._text[at:end]), end
        except (ValueError, RecursionError) as error:
            self._note_depth(at, error.pos if isinstance(error, json.JSONDecodeError) else end)
            if isinstance(error, RecursionError):
                raise ValueError("it is nested too deeply") from error
            raise

    def _note_depth(self, at: int, end: int) -> None:
        """Note if a part of a JSON value is nested too deeply, so that the values in it are not read one by one.

        `json` reads up to 10,000 levels since Python 3.12: the time would grow with the square of the text.
        """
        depth = 0
        for part in _BRACKET_OR_STRING.finditer(self._text, at, end):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part[0], 0)
            if depth > MAX_DEPTH:
                self._deep = part.end()
                return

    def _past_space(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        assert space is not None
        return space.end()

    def _next_tag(self, at: int) -> tuple[int, int]:
        """Return where the next tag of a call is, and where reading continues: at a beginning, or after an end."""
        tag = _TAG.search(self._text, at)
        if tag is None:
            return len(self._text), len(self._text)
        return tag.start(), tag.start() if tag[0] == _BEGIN else tag.end()

    def _hermes(self, at: int) -> tuple[list[Found], int]:
        """Read a JSON object, or a list of them, up to the tag after it."""
        try:
            value, end = self._json(at)
        except ValueError as error:
            stop, after = self._next_tag(at)
            return [_no_json(error, self._text[at:stop])], after
        stop, after = self._next_tag(end)
        more = self._text[end:stop].strip()
        if more:
            return [_no_json("more text follows it", self._text[at:stop])], after
        return _objects(value), after

    def _xml(self, at: int) -> tuple[list[Found], int]:
        """Read a function with its parameters. Without a tag before it, it must have parameters or be closed."""
        bare = self._text[max(at - len(_BEGIN), 0) : at] != _BEGIN
        stop, after = self._next_tag(at)
        function = _FUNCTION.search(self._text, at, stop)
        if function is None:
            return ["It has no <function=...>."], after
        name, at = function[1].strip(), function.end()
        schema = self._tools.schema(name)
        arguments: dict[str, Any] = {}
        while True:
            part = _OF_FUNCTION.search(self._text, at)
            if part is None or part[0] == _BEGIN:
                stop = len(self._text) if part is None else part.start()
                mentioned = bare and not arguments
                return ([] if mentioned else [{"name": name, "arguments": arguments}]), stop
            if not part[0].startswith("<parameter"):
                return [{"name": name, "arguments": arguments}], part.end()
            parameter = _PARAMETER.match(self._text, part.start())
            assert parameter is not None
            own = argument_schema(parameter[1].strip(), schema)
            value, end = self._value(parameter.end(), own, schema)
            if end is None:
                return [f"{part[0]} is not closed."], len(self._text)
            arguments[parameter[1].strip()], at = value, end

    def _value(self, at: int, own: Any, schema: Mapping[str, Any]) -> tuple[Any, int | None]:
        """Return the value of a parameter, and the position after it; None if the text ends inside it."""
        if self._text[at : at + 1] in ("{", "["):
            # Tags inside the texts of a JSON value do not end it.
            try:
                _, end = self._json(at)
            except ValueError:
                pass
            else:
                end = self._past_space(end)
                closed = self._text.startswith(_VALUE_END, end)
                if closed or _OF_FUNCTION.match(self._text, end):
                    return typed(self._text[at:end].rstrip(), own, schema), end + closed * len(_VALUE_END)
        stop = self._end_of_value(at)
        if stop is None:
            return None, None
        after = stop + len(_VALUE_END) if self._text.startswith(_VALUE_END, stop) else stop
        return typed(self._text[at:stop].removesuffix("\n"), own, schema), after

    def _end_of_value(self, at: int) -> int | None:
        """Return the first end of a value that a tag follows. Other ends may be part of a text."""
        first = end = self._text.find(_VALUE_END, at)
        limit = self._text.find("<parameter=", at)
        while end >= 0 and (limit < 0 or end < limit):
            if _AFTER_VALUE.match(self._text, end + len(_VALUE_END)):
                return end
            end = self._text.find(_VALUE_END, end + 1)
        following = _OF_FUNCTION.search(self._text, at)
        if first >= 0 and (following is None or first < following.start()):
            return first
        return None if following is None else following.start()

    def _mistral(self, at: int) -> tuple[list[Found], int]:
        """Read a JSON list of calls, or the name of a tool and its arguments."""
        compact = _COMPACT.match(self._text, at)
        begin = at if compact is None else compact.end()
        try:
            value, end = self._json(begin)
        except ValueError as error:
            following = self._text.find("[TOOL_CALLS]", begin)
            stop = len(self._text) if following < 0 else following
            return [_no_json(error, self._text[begin:stop])], stop
        return (_objects(value) if compact is None else [{"name": compact[1], "arguments": value}]), end

    def _llama(self, at: int) -> tuple[list[Found], int]:
        """Read one JSON object. Only separators may stand between it and the call, thought or tag before it."""
        if _BETWEEN.fullmatch(self._text, self._spoken, at) is None:
            return [], at + 1
        try:
            value, end = self._json(at)
        except ValueError as error:
            following = self._text.find('{"name"', at + 1)
            stop = len(self._text) if following < 0 else following
            self._spoken, unread = stop, self._text[at:stop]
            return ([_no_json(error, unread)] if '"name"' in unread else []), stop
        self._spoken = end
        name = value.get("name")
        called = isinstance(name, str) and ("parameters" in value or "arguments" in value or name in self._tools.names)
        return ([value] if called else []), end


def _objects(value: Any) -> list[Found]:
    return [
        each if isinstance(each, dict) else f"It is not a JSON object: {str(each)[:_MAX_QUOTED]}"
        for each in (value if isinstance(value, list) else [value])
    ]


def _no_json(why: object, text: str) -> str:
    return f"It is not JSON ({why}): {text.strip()[:_MAX_QUOTED]}"
