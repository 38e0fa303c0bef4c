"""Search and page a long text. Every answer is short, also for a text that is one long line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

SEARCH_S = 2.0
"""Maximum seconds of a search."""

MAX_MATCHES, MAX_AROUND, MAX_MATCH = 50, 1000, 500
"""Maximum matches of a page, characters around each, and characters of a match that are shown."""


class OutOfTime(Exception):
    """Raised if a search has passed its deadline.

    Attributes:
        reached: the character from which to continue.
    """

    def __init__(self, reached: int) -> None:
        super().__init__(f"out of time at character {reached}")
        self.reached = reached


class Pattern(Protocol):
    """A pattern that finds matches until a deadline."""

    def matches(self, text: str, start: int, deadline: float) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the matches from ``start`` on. Raise `OutOfTime` at the deadline."""
        ...


class Words:
    """A pattern that is searched for literally."""

    def __init__(self, words: str) -> None:
        self._words = words

    def matches(self, text: str, start: int, deadline: float) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each occurrence of the words from ``start`` on."""
        found = text.find(self._words, start)
        while found >= 0:
            yield found, found + len(self._words)
            found = text.find(self._words, found + len(self._words))


def search(id: str, text: str, pattern: Pattern, start: int, max_matches: int, around: int, room: int) -> str:
    """Return a page of matches, with the text around each and the place where the next page begins.

    Args:
        start: the character from which to search.
        max_matches: maximum number of matches.
        around: characters before and after each.
        room: maximum characters of the page, apart from its first and last line.
    """
    start = max(start, 0)
    max_matches, around = max(1, min(max_matches, MAX_MATCHES)), max(0, min(around, MAX_AROUND))
    lines: list[str] = []
    line, counted, taken = 1, 0, 0
    last = "There are no more matches."
    try:
        for begin, end in pattern.matches(text, start, time.monotonic() + SEARCH_S):
            line += text.count("\n", counted, begin)
            counted = begin
            excerpt = text[max(begin - around, 0) : min(end, begin + MAX_MATCH) + around]
            entry = f"[line {line}, character {begin}] {excerpt}"[:room]
            if lines and (len(lines) == max_matches or taken + len(entry) > room):
                last = f"There are more matches: search again with start={begin}."
                break
            lines.append(entry)
            taken += len(entry) + 1
    except OutOfTime as late:
        last = f"The search took too long and stopped: go on with start={late.reached}, or use a simpler pattern."
    found = f"{len(lines)} match{'' if len(lines) == 1 else 'es'}" if lines else "No match"
    return "\n".join([f"[{id}: {found}, from character {start} of {len(text)}]", *lines, last])


class NoSuchLine(Exception):
    """Raised for a line after the last one, with a text for the model."""


def view(id: str, text: str, character: int, line: int | None, lines: int | None, room: int) -> str:
    """Return a page of the text, with its place in the first line, and the place of the next page.

    Args:
        character: the character at which to begin; a negative one counts from the end.
        line: the line at which to begin instead, from 1.
        lines: maximum number of lines.
        room: maximum characters of the page, apart from its first line.

    Raises:
        NoSuchLine: the text has fewer lines.
    """
    begin = character if character >= 0 else max(len(text) + character, 0)
    if line is not None:
        found = _begin_of_line(text, max(line, 1))
        if found is None:
            raise NoSuchLine(f"there is no line {line}: the output has {text.count(chr(10)) + 1} lines")
        begin = found
    begin = min(begin, len(text))
    end = min(begin + room, len(text))
    if lines is not None:
        end = min(end, _end_of_lines(text, begin, end, max(lines, 1)))
    first = text.count("\n", 0, begin) + 1
    last = first + text.count("\n", begin, max(end - 1, begin))
    place = f"characters {begin} to {end} of {len(text)}, lines {first} to {last} of {text.count(chr(10)) + 1}"
    rest = "this is the end" if end == len(text) else f"go on with character={end}"
    return f"[{id}: {place}; {rest}]\n{text[begin:end]}"


def _begin_of_line(text: str, line: int) -> int | None:
    begin = 0
    for _ in range(line - 1):
        found = text.find("\n", begin)
        if found < 0:
            return None
        begin = found + 1
    return begin


def _end_of_lines(text: str, begin: int, end: int, lines: int) -> int:
    for _ in range(lines):
        found = text.find("\n", begin, end)
        if found < 0:
            return end
        begin = found + 1
    return begin
