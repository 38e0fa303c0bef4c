"""The changes from one JSON value to another, by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final


class _Absent:
    """The value of a missing key or index."""


ABSENT: Final = _Absent()


@dataclass(frozen=True)
class Change:
    """One change. A missing side is `ABSENT`."""

    path: str
    before: Any
    after: Any


def changes(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield the changes, in the order of the later value. Lists are compared by index."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*after, *before]):
            yield from changes(before.get(name, ABSENT), after.get(name, ABSENT), _joined(path, name))
    elif isinstance(before, list) and isinstance(after, list):
        for at in range(max(len(before), len(after))):
            one, other = (side[at] if at < len(side) else ABSENT for side in (before, after))
            yield from changes(one, other, _joined(path, str(at)))
    elif isinstance(before, bool) is not isinstance(after, bool) or before != after:
        yield Change(path, before, after)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
