"""The vocabulary of the office's families: the case in which a goal is set, and the registry of families."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mcpenv.extensions.generated_worlds import (
    ANY,
    Call,
    Changes,
    Family,
    Goal,
    NoCase,
    Row,
    Setting,
    answered,
    call,
    declined,
    set_to,
    where,
)

from ..company import Company
from ..schema import COLUMNS, TEXTS

__all__ = [
    "ANY",
    "FAMILIES",
    "READ_POLICY",
    "Call",
    "Case",
    "Changes",
    "Goal",
    "NoCase",
    "answered",
    "asked",
    "call",
    "declined",
    "family",
    "new",
    "set_to",
    "unique",
    "where",
]


class Case(Setting):
    """The setting of a task: a company to which goals add what they need.

    Args:
        company: the company at the start.
        rng: the randomness of this task.
        canary: a line that is added to each new text.
    """

    def __init__(self, company: Company, rng: random.Random, canary: str = "") -> None:
        super().__init__(company.tables, COLUMNS, TEXTS, rng, canary)
        self.company = company
        self.policy, self.user, self.today = company.policy, company.user, company.today.isoformat()

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


def new(table: str, **columns: Any) -> tuple[str, Row]:
    """Return the change that a new row makes."""
    row = {"id": ANY, **columns}
    assert tuple(row) == COLUMNS[table], (table, tuple(row))
    return f"{table}/*", row


def asked(about: str, question: str) -> tuple[Call, tuple[str, Any]]:
    """Return the call that asks, and its change."""
    change = ("questions/PART", {"part": ANY, "about": about, "text": ANY})
    return call("ask", about=about, question=question), change


READ_POLICY = [call("search_documents", words="Company policy"), call("read_document", document=1)]
"""The calls that read the policy, which is the first document."""


FAMILIES: dict[str, Family[Case]] = {}
"""All families by name."""


def family(group: str, hops: int, *tags: str) -> Callable[[Callable[[Case], Goal]], Callable[[Case], Goal]]:
    """Register a function as a family. Its name, with dashes, is the family's.

    Tags are "trap", "ask" (something is left open), "namesake" (distractors with the same name), "many" (several
    changes), "answer" (a question), "missing" (a tool is not there) and "text".
    """

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
