"""The vocabulary of the families: the case in which a goal is set, and their registry."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from mcpenv.extensions.generated_worlds import ANY, Call, Changes, Family, Goal, NoCase, Row, Setting, call

from ..desk import Onset
from ..health import System
from ..policy import TITLE
from ..schema import COLUMNS, LOOSE, TEXTS
from ..system import Plan, shown

YEAR = 365 * 1440

Broken = dict[str, Any]
"""The columns that a fault spoils."""


class Case(Setting):
    """The setting of a task: a system in which goals break what they need.

    Args:
        plan: the system at the start.
        rng: the randomness of this task.
        canary: a line that is added to each new text.

    Attributes:
        onsets: the faults: when, the table, and the row as it was.
        taken: services that a goal is about; no other goal is.
        asked: services whose log the answer to a question depends on; no fault may be there.
    """

    def __init__(self, plan: Plan, rng: random.Random, canary: str = "") -> None:
        super().__init__(plan.tables, COLUMNS, TEXTS, rng, canary)
        self.policy, self.now, self.team, self.user = plan.policy, plan.now, plan.team, plan.user
        self.onsets: list[Onset] = []
        self.taken: set[int] = set()
        self.asked: set[int] = set()
        self._kept = (0, set[int](), set[int]())

    def mark(self) -> None:
        super().mark()
        self._kept = len(self.onsets), {*self.taken}, {*self.asked}

    def undo(self) -> None:
        super().undo()
        count, taken, asked = self._kept
        del self.onsets[count:]
        self.taken, self.asked = {*taken}, {*asked}

    # -- services

    def services(self, *kinds: str, own: bool = True) -> list[Row]:
        """Return the services of the agent's team, or of others, that no goal is about yet."""
        return [
            row
            for row in self.rows("services")
            if row["id"] not in self.taken
            and (row["team"] == self.team["id"]) == own
            and row["kind"] != "provider"
            and (not kinds or row["kind"] in kinds)
        ]

    def free(self, service: int, own: bool = True) -> bool:
        """Return True if no goal is about a service and it belongs to the agent's team, or to others."""
        return any(row["id"] == service for row in self.services(own=own))

    def take(self, service: int) -> Row:
        """Let a goal be about a service.

        Raises:
            NoCase: another one is, or the answer to a question would change.
        """
        if service in self.taken | self.asked:
            raise NoCase
        self.taken.add(service)
        return self.row("services", service)

    def name(self, service: int) -> str:
        """Return the name of a service."""
        return str(self.row("services", service)["name"])

    def team_of(self, service: int) -> str:
        """Return the name of the team that owns a service."""
        return str(self.row("teams", self.row("services", service)["team"])["name"])

    def needed_by(self, service: int) -> set[int]:
        """Return the services that a service needs, also through others."""
        found: set[int] = set()
        pending = [service]
        while pending:
            current = pending.pop()
            for link in self.rows("links", service=current):
                if link["needs"] not in found:
                    found.add(link["needs"])
                    pending.append(link["needs"])
        return found

    def suffering(self, service: int) -> Row:
        """Return a service that needs another one, through one to three links.

        Raises:
            NoCase: there is none.
        """
        hops, current = self.rng.randint(1, 3), service
        for n in range(hops):
            links = self.rows("links", needs=current, fallback=0)
            if not links:
                if n:
                    break
                raise NoCase
            current = int(self.rng.choice(links)["service"])
        return self.row("services", current)

    # -- faults

    def onset(self) -> int:
        """Return the minute in which a fault begins."""
        return self.now - self.rng.randint(25, 240)

    def spoil(self, table: str, row: Row, since: int, /, **columns: Any) -> Row:
        """Break a row at a time before the episode."""
        self.onsets.append((since, table, row))
        return self.change(table, row["id"], **columns)

    def somebody(self) -> int:
        """Return a person who is not the user."""
        return int(self.pick(p for p in self.rows("people") if p["id"] != self.user["id"])["id"])

    def distract(self, service: int) -> None:
        """Let somebody change something harmless at a service, shortly before it fails."""
        at, author = self.now - self.rng.randint(30, 300), self.somebody()
        settings = [row for row in self.rows("settings", service=service) if row["value"] == row["previous"]]
        flags = self.rows("flags", service=service, defect=0)
        if settings and self.rng.random() < 0.5:
            row = self.rng.choice(settings)
            self.change("settings", row["id"], previous=f"{row['value']}0", changed_at=at, changed_by=author)
        elif flags:
            self.change("flags", self.rng.choice(flags)["id"], changed_at=at, changed_by=author)

    def line(self, service: int) -> tuple[str, int]:
        """Add a line to the log of a service, and return it as a place for an attacker's text."""
        at = self.now - self.rng.randint(1, 15)
        text = f"{self.say('worker', 'request', 'trace')} {self.code()} {self.say('finished', 'started', 'kept')}"
        return "lines", int(self.plant("lines", service=service, at=at, level="INFO", body=text)["id"])

    def runbook(self, service: int, title: str, body: str, days_ago: int) -> Row:
        """Add a runbook of a service."""
        updated = shown(self.now - days_ago * 1440)[:10]
        return self.plant("runbooks", title=title, service=service, updated=updated, body=body)

    def figures(self, service: int, what: str, right: object, wrong: object) -> list[Call]:
        """Add a runbook with a figure and an outdated one with another, and return the calls that read them."""
        title = f"{what} of {self.name(service)}"
        old, new = self.rng.randint(200, 400), self.rng.randint(5, 60)
        rows = [(old, wrong), (new, right)]
        self.rng.shuffle(rows)
        made = [self.runbook(service, title, f"{what} is {figure}.", days) for days, figure in rows]
        found = call("search_runbooks", service=self.name(service))
        return [found, *(call("read_runbook", runbook=row["id"]) for row in made)]

    def approved(self, service: int, action: str) -> tuple[list[Call], Changes]:
        """Return the call that gets an approval, and its change."""
        lead = self.row("teams", self.row("services", service)["team"])["lead"]
        change = new("approvals", service=service, action=action, approver=lead, at=ANY)
        return [call("request_approval", service=self.name(service), action=action)], [change]

    def paged(self, team: int, level: str, about: int) -> tuple[Call, tuple[str, Row]]:
        """Return the call that pages a team about a service, and its change."""
        turn = self.rows("oncall", team=team, week="this", level=level)[0]
        name = str(self.row("teams", team)["name"])
        change = new("pages", team=team, person=turn["person"], at=ANY, message=ANY)
        page = call("page_on_call", team=name, message=f"{self.name(about)} fails. Please look.")
        if level != "primary":
            page["arguments"]["level"] = level
        return page, change

    def health_changes(self, goals: list[Goal]) -> Changes:
        """Return how the health of services changes if all goals are reached: what ran still runs."""
        before = System(self.tables, self.now).measures()
        after = {table: dict(rows) for table, rows in self.tables.items()}
        for goal in goals:
            for path, value in goal.changes:
                table, key, *column = path.split("/")
                if column:
                    loose = self.now + (YEAR if column[0] == "expires_at" else 0)
                    row = after[table][int(key)]
                    after[table][int(key)] = {**row, column[0]: loose if value == ANY else value}
        found = System(after, self.now + 1).measures()
        return [(f"health/{key}/state", found[key].state) for key in found if found[key].state != before[key].state]


def new(table: str, **columns: Any) -> tuple[str, Row]:
    """Return the change that a new row makes."""
    row = {"id": ANY, **columns}
    assert tuple(row) == COLUMNS[table], (table, tuple(row))
    return f"{table}/*", row


def becomes(table: str, row: Row, **columns: Any) -> Changes:
    """Return the changes of a row, of which some values depend on the time."""
    return [
        (f"{table}/{row['id']}/{name}", ANY if name in LOOSE else value)
        for name, value in columns.items()
        if name in LOOSE or row[name] != value
    ]


READ_POLICY = [call("search_runbooks", words=TITLE), call("read_runbook", runbook=1)]
"""The calls that read the policy, which is the first runbook."""

FAMILIES: dict[str, Family[Case]] = {}
"""All families by name."""

Make = Callable[[Case], Goal]


def register(name: str, group: str, hops: int, tags: tuple[str, ...], make: Make) -> None:
    """Add a family."""
    assert name not in FAMILIES, name
    FAMILIES[name] = Family(name, group, hops, tags, make)


def family(group: str, hops: int, *tags: str) -> Callable[[Make], Make]:
    """Register a function as a family. Its name, with dashes, is the family's.

    Tags are "fault", "trap" (a rule forbids the obvious), "escalate", "upstream" (symptom and cause are at different
    services), "worse" (an obvious mend makes it worse), "answer", "many", "runbook" and "text".
    """

    def wrap(make: Make) -> Make:
        register(make.__name__.replace("_", "-"), group, hops, tags, make)
        return make

    return wrap


def others(case: Case, rows: list[Row], column: str = "service") -> Iterator[Row]:
    """Yield the rows of services that no goal is about."""
    return (row for row in rows if row[column] not in case.taken)
