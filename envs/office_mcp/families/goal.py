"""The vocabulary of families: a goal, the case in which it is set, and the registry of families."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..company import Company, Tables
from ..schema import COLUMNS, TEXTS, Row

ANY = {"$any": True}
"""Any value, in the expected changes."""

Call = dict[str, Any]
Changes = list[tuple[str, Any]]


class NoCase(Exception):
    """A company has no rows for a goal: another company, or another family, is tried."""


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


class Case:
    """The setting of a task: a company to which goals add what they need.

    Args:
        company: the company at the start.
        rng: the randomness of this task.
        canary: a line that is added to each new text.

    Attributes:
        tables: the rows, with those that were added or changed.
        delta: the rows that were added or changed.
    """

    def __init__(self, company: Company, rng: random.Random, canary: str = "") -> None:
        self.company, self.rng = company, rng
        self.policy, self.user, self.today = company.policy, company.user, company.today.isoformat()
        self.tables = copies(company.tables)
        self.delta: Tables = {}
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
        assert tuple(row) == COLUMNS[table], (table, tuple(row))
        if table in TEXTS:
            row[TEXTS[table]] += self._canary
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

    # -- who and what

    def colleague(self, **equal: Any) -> Row:
        """Return a colleague of the user."""
        return self.pick(p for p in self.rows("people", **equal) if p["id"] != self.user["id"])

    def person(self, person: Row | int) -> str:
        """Return the words that name one person, with the department if the name occurs twice."""
        row = self.row("people", person) if isinstance(person, int) else person
        if len(self.rows("people", name=row["name"])) == 1:
            return str(row["name"])
        return f"{row['name']} ({row['department']})"

    def find_person(self, person: Row | int) -> Call:
        """Return the call by which a person is found."""
        row = self.row("people", person) if isinstance(person, int) else person
        return call("search_people", words=row["name"])

    def account(self, account: int) -> str:
        """Return the name of an account, which is unique."""
        return str(self.row("accounts", account)["name"])

    def find_account(self, account: int) -> Call:
        """Return the call by which an account is found."""
        return call("search_accounts", words=self.account(account))

    def contact(self, contact: Row) -> str:
        """Return the words that name one contact."""
        return f"{contact['name']} of {self.account(contact['account'])}"

    # -- texts

    def say(self, *wordings: str) -> str:
        """Return one of several wordings."""
        return self.rng.choice(wordings)

    def code(self) -> str:
        """Return a code that stands nowhere else, such as "QX-4821"."""
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        return f"{self.rng.choice(letters)}{self.rng.choice(letters)}-{self.rng.randint(1000, 9999)}"

    def mail_from(self, sender: str, subject: str, body: str, folder: str = "inbox", days_ago: int = 2) -> Row:
        """Add a mail to the user."""
        return self.plant(
            "mails",
            sender=sender,
            recipient=self.user["email"],
            subject=subject,
            body=body,
            sent_at=f"{self.company.day(-days_ago)} 09:{self.rng.randint(10, 59)}",
            folder=folder,
            label="",
            reply_to=None,
        )

    def document(self, title: str, body: str, visibility: str = "all", folder: str = "reports") -> Row:
        """Add a document."""
        owner = self.rng.choice(self.rows("people"))["id"]
        return self.plant(
            "documents",
            title=title,
            folder=folder,
            owner=owner,
            visibility=visibility,
            shared_with="",
            body=body,
        )

    def message(self, channel: str, author: int, body: str) -> Row:
        """Add a message to the chat."""
        place = self.rows("channels", name=channel)[0]["id"]
        return self.plant(
            "messages", channel=place, author=author, body=body, at=f"{self.company.day(-1)} 10:15", pinned=0
        )

    def sent(self, to: str, subject: str, body: str, reply_to: int | None = None) -> tuple[str, Row]:
        """Return the change that a sent mail makes."""
        return new(
            "mails",
            sender=self.user["email"],
            recipient=to,
            subject=subject,
            body=body,
            sent_at=self.today,
            folder="sent",
            label="",
            reply_to=reply_to,
        )


def copies(tables: Tables) -> Tables:
    """Return tables that may be changed. Rows are replaced, never changed."""
    return {table: dict(rows) for table, rows in tables.items()}


def call(tool_name: str, **arguments: Any) -> Call:
    """Return a call of a tool."""
    return {"tool_name": tool_name, "arguments": arguments}


def new(table: str, **columns: Any) -> tuple[str, Row]:
    """Return the change that a new row makes."""
    row = {"id": ANY, **columns}
    assert tuple(row) == COLUMNS[table], (table, tuple(row))
    return f"{table}/*", row


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


def asked(about: str, question: str) -> tuple[Call, tuple[str, Any]]:
    """Return the call that asks, and its change."""
    change = ("questions/PART", {"part": ANY, "about": about, "text": ANY})
    return call("ask", about=about, question=question), change


READ_POLICY = [call("search_documents", words="Company policy"), call("read_document", document=1)]
"""The calls that read the policy, which is the first document."""


@dataclass(frozen=True)
class Family:
    """A kind of goal.

    Attributes:
        name: unique.
        group: the group of tools that it is about.
        hops: the facts that must be found before anything can be done.
        tags: what makes it hard: "trap" (a rule forbids the obvious), "ask" (something is left open), "namesake"
            (distractors with the same name), "many" (several changes), "answer" (a question), "missing" (a tool is
            not there), "text" (its solution reads a text of others, in which an attacker may write).
        make: sets one goal.
    """

    name: str
    group: str
    hops: int
    tags: tuple[str, ...]
    make: Callable[[Case], Goal]


FAMILIES: dict[str, Family] = {}
"""All families by name."""


def family(group: str, hops: int, *tags: str) -> Callable[[Callable[[Case], Goal]], Callable[[Case], Goal]]:
    """Register a function as a family. Its name, with dashes, is the family's."""

    def register(make: Callable[[Case], Goal]) -> Callable[[Case], Goal]:
        name = make.__name__.replace("_", "-")
        assert name not in FAMILIES, name
        FAMILIES[name] = Family(name, group, hops, tags, make)
        return make

    return register


def unique(rows: Iterable[Row], *columns: str) -> Iterator[Row]:
    """Yield the rows whose values in these columns no other row has."""
    found = list(rows)
    keys = [tuple(row[column] for column in columns) for row in found]
    return (row for row, key in zip(found, keys, strict=True) if keys.count(key) == 1)
