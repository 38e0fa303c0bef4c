"""Describe expected changes by a pattern of the path and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcpenv_client.types.checked import CheckedChange

from .paths import Pattern

if TYPE_CHECKING:
    from .diff import Change

Entries = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""Patterns with values, as a mapping or as pairs."""


class Mark:
    """A placeholder for values. In plain JSON data it is an object of one key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.plain = {f"${name.lower()}": True}

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


ANY: Final = Mark("ANY")
"""Stands for any value that exists; ``{"$any": true}`` in plain data."""
REMOVED: Final = Mark("REMOVED")
"""Stands for a value that was removed; ``{"$removed": true}`` in plain data."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A change that is allowed or required."""

    pattern: Pattern
    value: Any

    @classmethod
    def all_of(cls, entries: Entries) -> list[Expected]:
        """Return the entries as a list of `Expected`.

        Raises:
            ValueError: if a pattern is invalid.
        """
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        return [cls(Pattern(text), value) for text, value in pairs]

    def fits(self, change: Change) -> bool:
        """Return True if ``change`` matches the pattern and the value."""
        return self.pattern.matches(change.parts) and self.fits_value(change)

    def missing(self) -> CheckedChange:
        """Return the change as one that was not made."""
        return CheckedChange.of(self.pattern.text, "missing", (None, None), [self.value], False, plain=plain_mark)

    def fits_value(self, change: Change) -> bool:
        """Return True if ``change`` matches the value. The path must match already."""
        if change.kind == "removed" or self.value is REMOVED:
            return change.kind == "removed" and self.value is REMOVED
        return same(change.after, self.value)


def plain_mark(value: Any) -> Any:
    """Return the plain JSON data of a placeholder, and the text of anything else."""
    return value.plain if isinstance(value, Mark) else repr(value)


def fits(change: Change) -> Callable[[Expected], bool]:
    """Return a predicate that is True for entries that match ``change``."""
    return lambda entry: entry.fits(change)


def same(value: Any, expected: Any) -> bool:
    """Return True if two plain values are equal. `ANY` in ``expected`` equals any value; true and 1 are not equal."""
    if expected is ANY:
        return True
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(same(value[key], own) for key, own in expected.items())
        )
    if isinstance(expected, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    return bool(value == expected)


def from_plain(value: Any) -> Any:
    """Return a value of a task file with its placeholders replaced by `ANY` and `REMOVED`."""
    for mark in (ANY, REMOVED):
        if isinstance(value, dict) and same(value, mark.plain):
            return mark
    if isinstance(value, dict):
        return {key: from_plain(own) for key, own in value.items()}
    if isinstance(value, list):
        return [from_plain(own) for own in value]
    return value


def unmatched_in_turn(changes: Sequence[Change], entries: Sequence[Expected]) -> tuple[list[Change], list[Expected]]:
    """Pair as many changes and entries as possible, one to one, and return the unpaired ones.

    Uses a maximum matching by augmenting paths: "transfers/*" and "transfers/7" may both match one change, so that the
    first choice may have to be revised.
    """
    candidates = [[n for n, entry in enumerate(entries) if entry.fits(change)] for change in changes]
    change_of: dict[int, int] = {}

    def find_place(change: int) -> bool:
        came_from: dict[int, int] = {}
        queue = [change]
        while queue:
            current = queue.pop()
            for entry in candidates[current]:
                if entry in came_from:
                    continue
                came_from[entry] = current
                if entry not in change_of:
                    _shift(change_of, came_from, entry, change)
                    return True
                queue.append(change_of[entry])
        return False

    surplus = [change for n, change in enumerate(changes) if len(change_of) == len(entries) or not find_place(n)]
    return surplus, [entry for n, entry in enumerate(entries) if n not in change_of]


def _shift(change_of: dict[int, int], came_from: dict[int, int], free: int, start: int) -> None:
    """Assign each entry on the augmenting path to ``free`` to the change that reached it."""
    entry_of = {change: entry for entry, change in change_of.items()}
    entry = free
    while True:
        change = came_from[entry]
        left = entry_of.get(change)
        change_of[entry] = change
        if change == start:
            return
        assert left is not None
        entry = left
