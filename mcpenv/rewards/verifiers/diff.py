"""Compute the changes between two states of a world, and compare them with the expected ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, overload

from mcpenv_client.types.checked import MAX_CHECKED, CheckedChange

from .paths import ANY_NUMBER, Pattern, parts_of
from .patterns import REMOVED, Entries, Expected, Mark, fits, plain_mark, same, unmatched_in_turn

MAX_PROBLEMS = 20
"""Maximum number of problems that a verdict lists."""
_MAX_SHOWN = 120

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two trees. A row or file that was added or removed is one change, at its own path.

    Attributes:
        path: the keys that lead to it.
        kind: "added", "removed" or "changed".
        before: the value before; None if it was added.
        after: the value after; None if it was removed.
        parts: the path as patterns see it.
    """

    path: tuple[str, ...]
    kind: Kind
    before: Any = None
    after: Any = None
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def where(self) -> str:
        """The path in the notation of patterns."""
        return "/".join(self.parts or self.path)

    def __str__(self) -> str:
        where = self.where or "the world"
        if self.kind == "changed":
            return f"{where} changed from {_shown(self.before)} to {_shown(self.after)}"
        return f"{where} was {self.kind}"

    @property
    def sentence(self) -> str:
        """The change with the added or removed value."""
        if self.kind == "changed":
            return str(self)
        return f"{self}: {_shown(self.before if self.kind == 'removed' else self.after)}"

    def checked(self, entries: Sequence[Expected] = (), passed: bool | None = None) -> CheckedChange:
        """Return the change beside the values that entries expect there."""
        expected = [e.value for e in entries if (e.fits(self) if passed else e.pattern.matches(self.parts))]
        return CheckedChange.of(self.where, self.kind, (self.before, self.after), expected, passed, plain=plain_mark)

    def to_plain(self) -> dict[str, Any]:
        """Return the change as plain JSON data."""
        data: dict[str, Any] = {"path": list(self.path), "kind": self.kind}
        if self.kind != "added":
            data["before"] = self.before
        if self.kind != "removed":
            data["after"] = self.after
        return data


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer whether the changes are allowed; ``verify`` may return it.

    If it passed, the end is worth the top of its task's ``reward_range``, otherwise the bottom. As a number it is 1.0
    or 0.0.

    Attributes:
        passed: True if nothing is wrong.
        problems: one sentence for each problem; empty if there is none.
        evidence: the changes beside the expected ones, those that are wrong first.
    """

    passed: bool
    problems: list[str] = field(default_factory=list)
    evidence: list[CheckedChange] = field(default_factory=list, compare=False, repr=False)

    def __bool__(self) -> bool:
        return self.passed

    def __float__(self) -> float:
        return float(self.passed)


class Changes(Sequence[Change]):
    """The differences between two trees: in the order of the keys of ``before``, then the new keys of ``after``.

    Trees are plain JSON data. Objects are compared by key, any other value as a whole: a list that differs is one
    change. ``1`` and ``1.0`` are equal, ``1`` and ``true`` are not.

    Args:
        before, after: states of a world, as it captures them.
        ignore: patterns of places that do not count, also inside an added or removed value.
        named: True if the trees hold several worlds, by name.

    Attributes:
        checked: the changes as the last comparison saw them, also one of `ignoring`; empty before the first.

    Raises:
        ValueError: if a pattern is invalid, or a tree is nested too deeply.
    """

    def __init__(self, before: Any, after: Any, ignore: Iterable[str] = (), *, named: bool = False) -> None:
        self.before, self.after = before, after
        self.checked: list[CheckedChange] = []
        self._named = named
        self._ignored = [Pattern(text) for text in ([ignore] if isinstance(ignore, str) else ignore)]
        try:
            self._found = list(self._walk(before, after, (), ()))
        except RecursionError as error:
            raise ValueError("the world is nested too deeply") from error

    def ignoring(self, *patterns: str) -> Changes:
        """Return the changes without those in places that match ``patterns``."""
        known = [pattern.text for pattern in self._ignored]
        fewer = Changes(self.before, self.after, [*known, *patterns], named=self._named)
        fewer.checked = self.checked
        return fewer

    def expect_only(self, allowed: Entries, require: Entries = ()) -> Verdict:
        """Check that every change is allowed.

        A value is compared with the value in ``after``. `ANY` stands for any value, also inside another value.
        `REMOVED` stands for a missing value:
        ``{"accounts/1/balance": 90, "transfers/*": {"id": ANY, "amount": 10}, "drafts/4": REMOVED}``.

        Args:
            allowed: patterns with values, as a mapping or as pairs.
            require: patterns with values of changes that are allowed and must have been made.

        Raises:
            ValueError: if a pattern is invalid.
        """
        required = Expected.all_of(require)
        entries = [*required, *Expected.all_of(allowed)]
        wrong = [change for change in self if not any(map(fits(change), entries))]
        missing = [entry for entry in required if not any(map(entry.fits, self))]
        return self._verdict(wrong, missing, entries)

    def expect_exactly(self, expected: Entries) -> Verdict:
        """Check that every change is expected, and that every expected change was made exactly once.

        Args:
            expected: patterns with values as in `expect_only`. Each stands for one change. If two changes of the same
                pattern are expected, give pairs: ``[("transfers/*", ...), ("transfers/*", ...)]``.

        Raises:
            ValueError: if a pattern is invalid.
        """
        entries = Expected.all_of(expected)
        return self._verdict(*unmatched_in_turn(self._found, entries), entries)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"Changes({len(self)}: {'; '.join(map(str, self._found[:3]))}{'; ...' if len(self) > 3 else ''})"

    def _walk(self, before: Any, after: Any, path: tuple[str, ...], parts: tuple[str, ...]) -> Iterator[Change]:
        if not (isinstance(before, dict) and isinstance(after, dict)):
            if not same(before, after):
                yield Change(path, "changed", before, after, parts)
            return
        beside = before.keys() | after.keys() if len(path) <= self._named else None
        for key in [*before, *(key for key in after if key not in before)]:
            there, itself = (*path, key), (*parts, *parts_of(key, beside))
            if self._ignores(itself):
                continue
            if key not in after:
                yield Change(there, "removed", before=self._without(before[key], there, itself), parts=itself)
            elif key not in before:
                yield Change(there, "added", after=self._without(after[key], there, itself), parts=itself)
            else:
                yield from self._walk(before[key], after[key], there, itself)

    def _ignores(self, parts: tuple[str, ...]) -> bool:
        return any(pattern.matches(parts) for pattern in self._ignored)

    def _without(self, value: Any, path: tuple[str, ...], parts: tuple[str, ...]) -> Any:
        """Return an added or removed value without the ignored places."""
        if not self._ignored or not isinstance(value, dict):
            return value
        beside = value.keys() if len(path) <= self._named else None
        kept = {}
        for key, own in value.items():
            itself = (*parts, *parts_of(key, beside))
            if not self._ignores(itself):
                kept[key] = self._without(own, (*path, key), itself)
        return kept

    def _verdict(self, wrong: Sequence[Change], missing: list[Expected], entries: Sequence[Expected]) -> Verdict:
        problems = []
        for change in wrong:
            problems.append(self._wrong(change, entries))
            if not any(map(fits(change), entries)):  # It names what was expected there, so that one is not missing too.
                place = next((n for n, each in enumerate(missing) if each.pattern.matches(change.parts)), len(missing))
                del missing[place : place + 1]
        problems += map(self._missing, missing)
        if (further := len(problems) - MAX_PROBLEMS) > 0:
            problems[MAX_PROBLEMS:] = [f"and {further} more"]
        evidence = [change.checked(entries, False) for change in wrong[:MAX_CHECKED]]
        evidence += [each.missing() for each in missing[: MAX_CHECKED - len(evidence)]]
        refused = set(map(id, wrong))
        right = (change for change in self if id(change) not in refused)
        evidence += [change.checked(entries, True) for change in islice(right, MAX_CHECKED - len(evidence))]
        self.checked[:] = evidence
        return Verdict(not problems, problems, evidence)

    def _wrong(self, change: Change, entries: Sequence[Expected]) -> str:
        here = [entry for entry in entries if entry.pattern.matches(change.parts)]
        if not here:
            return f"{change}, but no change is expected there"
        if any(map(fits(change), here)):
            return f"{change}: {here[0].pattern.text} is expected once, and another change is that one"
        made = f"{change} as {_shown(change.after)}" if change.kind == "added" else str(change)
        return f"{made}: expected {' or '.join(dict.fromkeys(_shown(entry.value) for entry in here))}"

    def _missing(self, entry: Expected) -> str:
        """Return the problem of an entry without a change. If one is named at another level, it says how to name it."""
        text = f"{entry.pattern.text}: expected {_shown(entry.value)}, and there is no such change"
        parts = entry.pattern.parts
        if entry.value is REMOVED or ANY_NUMBER in parts:
            return text
        above = [Pattern("/".join(parts[:n])) for n in range(1, len(parts))]
        for change in self:
            place = "/".join(change.parts)
            if any(entry.pattern.matches(change.parts[:n]) for n in range(1, len(change.parts))):
                return f"{text}, but one inside of it; name the inner place, {place}"
            if change.kind == "added" and any(each.matches(change.parts) for each in above):
                return f"{text}, because {place} is new; name it as a whole: {_shown({place: change.after})}"
        return text


def _shown(value: Any) -> str:
    if isinstance(value, Mark):
        return repr(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
