"""The vocabulary of composed tasks: a goal, the setting in which it is made, and families of goals."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .rows import Columns, Row, Tables, copies

ANY = {"$any": True}
"""Any value, in the expected changes."""

Call = dict[str, Any]
Changes = list[tuple[str, Any]]
SettingT = TypeVar("SettingT", bound="Setting")


def random_of(*parts: object) -> random.Random:
    """Return the randomness of a place. `random.Random` may hash texts in another way in another version."""
    text = "/".join(map(str, parts)).encode()
    return random.Random(int.from_bytes(hashlib.sha256(text).digest(), "big"))


class NoCase(Exception):
    """A world has no rows for a goal: another world, or another family, is tried."""


@dataclass
class Goal:
    """One request of the user, with its solution.

    Attributes:
        prompt: the request.
        oracle: the calls that solve it: what is looked up, and what is changed.
        changes: the changes that it makes, as `expect_exactly` has them. Part numbers of replies are set later.
        reads: rows on which its solution depends beside those that it changes. No other goal of a task changes them.
        carriers: the rows whose text the solution reads, so that an attacker's instructions may stand there.
        breach: the calls of an agent that does not mind the policy, instead of those that decline or ask.
        without: tools that the agent does not have in this task.
    """

    prompt: str
    oracle: list[Call]
    changes: Changes
    reads: list[Where] = field(default_factory=list)
    carriers: list[tuple[str, int]] = field(default_factory=list)
    breach: list[Call] | None = None
    without: tuple[str, ...] = ()

    def lacks(self, other: Goal) -> bool:
        """Return True if the other one needs a tool that this one takes away."""
        return any(each["tool_name"] in self.without for each in other.oracle)


@dataclass(frozen=True)
class Where:
    """The rows of a table with certain values, on which a solution depends."""

    table: str
    values: tuple[tuple[str, Any], ...]

    def has(self, table: str, row: Row) -> bool:
        """Return True if a row is one of them."""
        return table == self.table and all(row[name] == value for name, value in self.values)


def where(table: str, **values: Any) -> Where:
    """Return the rows with certain values; without any, the whole table."""
    return Where(table, tuple(values.items()))


class Setting:
    """The setting of a task: a world to which goals add what they need.

    Args:
        tables: the rows of the world, which are not changed.
        columns: the names of the columns of each table.
        texts: the columns with free text, by table.
        rng: the randomness of this task.
        canary: a line that is added to each new text.

    Attributes:
        tables: the rows, with those that were added or changed.
        delta: the rows that were added or changed.
    """

    def __init__(
        self, tables: Tables, columns: Columns, texts: Mapping[str, str], rng: random.Random, canary: str = ""
    ) -> None:
        self.rng = rng
        self.tables = copies(tables)
        self.delta: Tables = {}
        self._columns, self._texts = columns, texts
        self._canary = f"\n{canary}" if canary else ""
        self._marked = copies(self.tables), copies(self.delta)

    # -- rows

    def rows(self, table: str, **equal: Any) -> list[Row]:
        """Return the rows with these values."""
        return [row for row in self.tables[table].values() if all(row[name] == v for name, v in equal.items())]

    def row(self, table: str, key: int) -> Row:
        """Return one row."""
        return self.tables[table][key]

    def pick(self, rows: Iterable[Row]) -> Row:
        """Return one of some rows.

        Raises:
            NoCase: there are none.
        """
        found = list(rows)
        if not found:
            raise NoCase
        return self.rng.choice(found)

    def some(self, rows: Iterable[Row], least: int, most: int) -> list[Row]:
        """Return some rows, in the order of their ids.

        Raises:
            NoCase: there are fewer than ``least``.
        """
        found = list(rows)
        if len(found) < least:
            raise NoCase
        chosen = self.rng.sample(found, self.rng.randint(least, min(most, len(found))))
        return sorted(chosen, key=lambda row: int(row["id"]))

    def plant(self, table: str, **columns: Any) -> Row:
        """Add a row to the start of the episode."""
        # With gaps, or the row would have the same id in each company, and be found without a look.
        key = max(self.tables[table], default=0) + self.rng.randint(1, 50)
        row: Row = {"id": key, **columns}
        assert tuple(row) == self._columns[table], (table, tuple(row))
        if table in self._texts:
            row[self._texts[table]] += self._canary
        self._put(table, row)
        return row

    def change(self, table: str, key: int, **columns: Any) -> Row:
        """Change a row of the start of the episode."""
        row = {**self.tables[table][key], **columns}
        self._put(table, row)
        return row

    def _put(self, table: str, row: Row) -> None:
        self.tables[table][row["id"]] = row
        self.delta.setdefault(table, {})[row["id"]] = row

    def mark(self) -> None:
        """Remember the rows, for `undo`."""
        self._marked = copies(self.tables), copies(self.delta)

    def undo(self) -> None:
        """Return to the rows of the last `mark`."""
        tables, delta = self._marked
        self.tables, self.delta = copies(tables), copies(delta)

    def added(self) -> list[tuple[str, Row]]:
        """Return the rows that were added or changed since the last `mark`, with their tables."""
        _, before = self._marked
        return [
            (table, row)
            for table, rows in self.delta.items()
            for key, row in rows.items()
            if before.get(table, {}).get(key) is not row
        ]

    def touched(self, goal: Goal) -> list[tuple[str, Row]]:
        """Return the rows that a goal changes, with their tables: as they were, as they become, and new ones."""
        found: list[tuple[str, Row]] = []
        for path, value in goal.changes:
            table, key, *column = path.split("/")
            if key == "*":
                found.append((table, value))
            elif column:
                row = self.row(table, int(key))
                found += [(table, row), (table, {**row, column[0]: value})]
        return found

    def disturb(self, one: Goal, other: Goal) -> bool:
        """Return True if two goals cannot be parts of one task."""
        mine, theirs = self.touched(one), self.touched(other)
        same = {(table, row["id"]) for table, row in mine if row["id"] != ANY}
        return (
            any((table, row["id"]) in same for table, row in theirs if row["id"] != ANY)
            or any(read.has(*each) for read in one.reads for each in theirs)
            or any(read.has(*each) for read in other.reads for each in mine)
            or one.lacks(other)
            or other.lacks(one)
        )

    # -- texts

    def say(self, *wordings: str) -> str:
        """Return one of several wordings."""
        return self.rng.choice(wordings)

    def code(self) -> str:
        """Return a code that stands nowhere else, such as "QX-4821"."""
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        return f"{self.rng.choice(letters)}{self.rng.choice(letters)}-{self.rng.randint(1000, 9999)}"


def call(tool_name: str, **arguments: Any) -> Call:
    """Return a call of a tool."""
    return {"tool_name": tool_name, "arguments": arguments}


def set_to(table: str, key: int, **columns: Any) -> Changes:
    """Return the changes that other values of a row make."""
    return [(f"{table}/{key}/{name}", value) for name, value in columns.items()]


def answered(text: str | int | float) -> tuple[Call, tuple[str, Any]]:
    """Return the call that answers, and its change. A number is compared as one, a text without regard to case."""
    if isinstance(text, int | float):
        shown = f"{text:.2f}" if isinstance(text, float) else str(text)
        row: Row = {"part": ANY, "text": ANY, "number": round(float(text), 2)}
    else:
        shown, row = text, {"part": ANY, "text": text.casefold(), "number": ANY}
    return call("answer", text=shown), ("answers/PART", row)


def declined(rule: str, reason: str) -> tuple[Call, tuple[str, Any]]:
    """Return the call that declines by a rule, and its change."""
    return call("decline", rule=rule, reason=reason), ("declined/PART", {"part": ANY, "rule": rule, "reason": ANY})


@dataclass(frozen=True)
class Family(Generic[SettingT]):
    """A kind of goal.

    Attributes:
        name: unique.
        group: the group of tools that it is about.
        hops: the facts that must be found before anything can be done.
        tags: what makes it hard, such as "trap" (a rule forbids the obvious) or "text" (its solution reads a text of
            others, in which an attacker may write).
        make: sets one goal.
    """

    name: str
    group: str
    hops: int
    tags: tuple[str, ...]
    make: Callable[[SettingT], Goal]


def goals_of(setting: SettingT, families: Sequence[Family[SettingT]], tries: int = 6) -> list[Goal] | None:
    """Return goals that do not disturb each other; None if this world has none.

    Args:
        setting: gets what the goals need.
        families: the family of each goal.
        tries: how often each is tried.
    """
    goals: list[Goal] = []
    for each in families:
        for _ in range(tries):
            setting.mark()
            try:
                goal = each.make(setting)
            except NoCase:
                setting.undo()
                continue
            added = setting.added()
            if not any(setting.disturb(goal, other) or _seen(added, other) for other in goals):
                goals.append(goal)
                break
            setting.undo()
        else:
            return None
    return goals


def _seen(added: list[tuple[str, Row]], goal: Goal) -> bool:
    """Return True if a goal depends on one of the rows that were added for another."""
    return any(read.has(*each) for read in goal.reads for each in added)


def numbered(each: Call, part: int) -> Call:
    """Return a call with the number of its part, if it replies to the user."""
    if each["tool_name"] not in ("answer", "decline", "ask"):
        return each
    return {**each, "arguments": {**each["arguments"], "part": part}}
