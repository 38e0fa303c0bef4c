"""A change of a world beside what its verifier expected there."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from .texts import well_formed

MAX_CHECKED = 50
"""Maximum changes that an episode keeps."""
MAX_VALUE = 1000
"""Maximum characters of a value as JSON. Of a longer one its text around the first difference is kept."""

_BEFORE_DIFFERENCE = 100


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
        cut: True if a value is a part of its JSON text, because it is too long.
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
        given = [*values, *expected]
        start = _first_difference([each for each in given if isinstance(each, str)])
        kept = [_bounded(each, max(0, start - _BEFORE_DIFFERENCE), plain) for each in given]
        (before, _), (after, _), *wanted = kept
        cut = any(each for _, each in kept)
        return cls(well_formed(where)[:MAX_VALUE], kind, before, after, [each for each, _ in wanted], passed, cut)


def _first_difference(texts: list[str]) -> int:
    if len(texts) < 2 or max(map(len, texts)) <= MAX_VALUE:
        return 0
    first, *others = texts
    return bisect_left(
        range(min(map(len, texts))), True, key=lambda n: any(each[: n + 1] != first[: n + 1] for each in others)
    )


def _bounded(value: Any, start: int, plain: Callable[[Any], Any]) -> tuple[Any, bool]:
    """Return a value as plain JSON data, or a part of its text, and True if it is a part.

    Args:
        start: the first character to keep of a text that is too long.
    """
    if isinstance(value, str) and len(value) > MAX_VALUE:
        part = value[start : start + MAX_VALUE]
        return well_formed(f"{'…' * (start > 0)}{part}{'…' * (start + MAX_VALUE < len(value))}"), True
    try:
        text = well_formed(json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False))
    except (RecursionError, TypeError, ValueError):
        return f"a {type(value).__name__} without a JSON form", True
    return (json.loads(text), False) if len(text) <= MAX_VALUE else (f"{text[:MAX_VALUE]}…", True)
