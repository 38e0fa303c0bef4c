"""A change of a world beside what its verifier expected there."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from .texts import well_formed

MAX_CHECKED = 50
"""Maximum changes that an episode keeps."""
MAX_VALUE = 1000
"""Maximum characters of a value as JSON. Of a longer one its text around the first difference is kept."""

MAX_EXPECTED = 5
"""Maximum values that a change is beside."""

_MAX_DEPTH = 20
"""Levels of nesting above which a value is kept as its JSON text. Readers of JSON stop at a depth of their own."""
_BEFORE_DIFFERENCE = 100
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class CheckedChange:
    """A change of a world, or a change that is missing, beside what was expected.

    Attributes:
        where: its path in the notation of verifiers' patterns; the pattern itself if the change is missing.
        kind: "added", "removed", "changed" or "missing".
        before, after: the values, as plain JSON data; None if there is none.
        expected: the values that would have been right there; empty if no change was expected. `ANY` and `REMOVED` are
            objects, as in task files.
        passed: True if it is as expected, False if it is a reason why the episode did not pass, and None if nothing
            compared it.
        cut: True if a value is a text of JSON or a part of it, because it is too long or nested too deeply, or if more
            values were expected.
    """

    where: str
    kind: Literal["added", "removed", "changed", "missing"]
    before: Any = None
    after: Any = None
    expected: list[Any] = field(default_factory=list)
    passed: bool | None = None
    cut: bool = False

    @classmethod
    def of(
        cls,
        where: str,
        kind: Literal["added", "removed", "changed", "missing"],
        values: tuple[Any, Any],
        expected: Iterable[Any] = (),
        passed: bool | None = None,
        *,
        plain: Callable[[Any], Any] = repr,
    ) -> CheckedChange:
        """Return a change with bounded values.

        Args:
            values: before and after.
            plain: gives plain JSON data for a value that is none.
        """
        wanted = list(islice(expected, MAX_EXPECTED + 1))
        given = [*values, *wanted[:MAX_EXPECTED]]
        start = _first_difference([each for each in given if isinstance(each, str)])
        kept = [_bounded(each, max(0, start - _BEFORE_DIFFERENCE), plain) for each in given]
        before, after, *right = (value for value, _ in kept)
        cut = any(each for _, each in kept) or len(wanted) > MAX_EXPECTED
        return cls(well_formed(where)[:MAX_VALUE], kind, before, after, right, passed, cut)


def _first_difference(texts: list[str]) -> int:
    if len(texts) < 2 or max(map(len, texts)) <= MAX_VALUE:
        return 0
    first, *others = texts
    shortest = min(map(len, texts))

    def differ(start: int, end: int) -> bool:
        return any(each[start:end] != first[start:end] for each in others)

    block = next((at for at in range(0, shortest, _BLOCK) if differ(at, at + _BLOCK)), shortest)
    return block + bisect_left(range(min(_BLOCK, shortest - block)), True, key=lambda n: differ(block, block + n + 1))


def _bounded(value: Any, start: int, plain: Callable[[Any], Any]) -> tuple[Any, bool]:
    """Return a value as plain JSON data, or a part of its text, and True if it is a part.

    Args:
        start: the first character to keep of a text that is too long.
    """
    if isinstance(value, str) and len(value) > MAX_VALUE:
        part = value[start : start + MAX_VALUE]
        return well_formed(f"{'…' * (start > 0)}{part}{'…' * (start + MAX_VALUE < len(value))}"), True
    text = ""
    try:
        for part in json.JSONEncoder(ensure_ascii=False, default=plain, allow_nan=False).iterencode(value):
            text += part
            if len(text) > MAX_VALUE:
                return well_formed(f"{text[:MAX_VALUE]}…"), True
    except (RecursionError, TypeError, ValueError):
        return f"a {type(value).__name__} without a JSON form", True
    text = well_formed(text)
    kept = json.loads(text)
    return (text, True) if _deeper(kept, _MAX_DEPTH) else (kept, False)


def _deeper(value: Any, levels: int) -> bool:
    """Return True if objects and lists are nested in more than that many levels."""
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    return any(_deeper(each, levels - 1) for each in (value.values() if isinstance(value, dict) else value))
