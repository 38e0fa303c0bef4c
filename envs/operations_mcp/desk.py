"""The system as tools see it: time that passes, names instead of ids, and no column that is hidden."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import Any

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row, RowDesk, Tables

from .health import LAWS, Measure, System
from .names import NOISE
from .schema import COLUMNS, HIDDEN
from .system import shown

FINDERS = {
    "people": "search_people",
    "deployments": "list_deployments",
    "flags": "list_flags",
    "certificates": "list_certificates",
    "credentials": "list_credentials",
    "queues": "list_queues",
    "disks": "list_disks",
    "jobs": "list_jobs",
    "limits": "list_rate_limits",
    "records": "list_dns_records",
    "nodes": "list_nodes",
    "alerts": "list_alerts",
    "incidents": "list_incidents",
    "tickets": "search_tickets",
    "runbooks": "search_runbooks",
}
"""The tool that finds the ids of a table."""

NOUNS = {"people": "person", "limits": "rate limit", "records": "DNS record"}

NAMED = {
    **dict.fromkeys(("service", "needs", "producer", "limiter"), "services"),
    "team": "teams",
    **dict.fromkeys(("lead", "author", "changed_by", "commander", "person", "approver", "requester"), "people"),
}
"""The columns that agents see as names, and the tables of these."""

TIMES = frozenset({"at", "changed_at", "started_at", "expires_at", "opened_at", "first", "last", "silenced_until"})

JUDGED = tuple(dict.fromkeys(("services", "links", *(law.table for law in LAWS))))
"""The tables from which the condition of services follows."""

Onset = tuple[int, str, Row]
"""The minute of a fault, its table, and its row as it was before."""

HISTORY = 1440
"""Minutes before the episode for which there are metrics."""


class Desk(RowDesk):
    """The system's database in one episode.

    Args:
        db: the connection, which is reset with each episode.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__(db, FINDERS, NOUNS)

    # -- time

    @property
    def now(self) -> int:
        """The minute."""
        return int(self.db.execute("SELECT minute FROM clock").fetchone()[0])

    @property
    def team(self) -> int:
        """The team of the agent."""
        return int(self._fact("team"))

    @property
    def user(self) -> int:
        """The person for whom the agent works."""
        return int(self._fact("user"))

    def done(self, row: Row) -> Row:
        """Let a minute pass, as each change takes one, and return a row as agents see it."""
        self.tick()
        return self.public(row)

    def tick(self) -> None:
        """Let a minute pass. The condition of each service follows from the rows."""
        self.db.execute("UPDATE clock SET minute = minute + 1")
        self._write(System(self._tables(), self.now))

    def begin(self, onsets: Sequence[Onset]) -> None:
        """Write what was measured before the episode.

        Args:
            onsets: the faults, which began one after the other.
        """
        now, tables = self.now, self._tables()
        times = sorted({at for at, _, _ in onsets})
        for time in (now - HISTORY, *times):
            then = {**tables}
            for at, table, row in onsets:
                if at > time and table in then:
                    then[table] = {**then[table], row["id"]: row}
            self._write(System(then, time))
        self._write(System(tables, now))

    def _tables(self) -> Tables:
        return {table: {row["id"]: dict(row) for row in self.db.execute(f"SELECT * FROM {table}")} for table in JUDGED}

    def _write(self, system: System) -> None:
        known = {
            row["service"]: (row["errors"], row["slow"], row["cpu"], row["memory"], row["body"])
            for row in self.db.execute("SELECT * FROM phases ORDER BY id")
        }
        for key, measure in system.measures().items():
            service = system.row("services", key)
            cpu = min(100, 100 * service["traffic"] // max(1, service["replicas"] * service["capacity"]))
            memory = min(service["memory_mb"], service["needs_mb"])
            if any("out of memory" in line for line in measure.lines):
                memory = service["memory_mb"]
            found = (measure.errors, measure.slow, cpu, memory, "\n".join(measure.lines))
            if known.get(key) != found:
                self.insert(
                    "phases",
                    **dict(zip(COLUMNS["phases"][1:], (key, system.now, *found), strict=True)),
                )
                self.db.execute("UPDATE health SET state = ? WHERE id = ?", (measure.state, key))

    # -- what was measured

    def phases(self, service: int) -> list[Row]:
        """Return the phases of a service, oldest first."""
        return [dict(row) for row in self.db.execute("SELECT * FROM phases WHERE service = ? ORDER BY id", (service,))]

    def measured(self, service: int, minute: int) -> Row:
        """Return what was measured in a minute."""
        phases = self.phases(service)
        phase = next((each for each in reversed(phases) if each["at"] <= minute), phases[0])
        noise = zlib.crc32(f"{service}/{minute}".encode()) % 7
        return {
            "at": shown(minute),
            "errors_percent": min(100, phase["errors"] + (noise == 6)),
            "latency_ms": (40 + noise) * phase["slow"] ** 2,
            "cpu_percent": min(100, phase["cpu"] + noise),
            "memory_mb": phase["memory"],
        }

    def log(self, service: int, minutes: int) -> list[Row]:
        """Return the log of a service, oldest first: what others wrote, what fails, and what is as usual."""
        now, phases = self.now, self.phases(service)
        written = self.db.execute(
            "SELECT at, level, body FROM lines WHERE service = ? AND at > ?", (service, now - minutes)
        )
        found = [(int(row["at"]), str(row["level"]), str(row["body"])) for row in written]
        for minute in range(now - minutes + 1, now + 1):
            phase = next((each for each in reversed(phases) if each["at"] <= minute), phases[0])
            noise = zlib.crc32(f"{service}/{minute}".encode())
            if minute == phase["at"] or noise % 5 == 0:
                found += [(minute, "ERROR", line) for line in phase["body"].splitlines()]
            if noise % 7 == 1:
                found.append((minute, "INFO", NOISE[noise % len(NOISE)]))
        return [{"at": shown(at), "level": level, "text": text} for at, level, text in sorted(found)]

    # -- rows

    def service(self, name: str) -> Row:
        """Return a service by its name.

        Raises:
            ToolError: there is none.
        """
        found = self.find("services", name=name.strip().lower())
        if not found:
            known = ", ".join(row["name"] for row in self.find("services"))
            raise ToolError(f"There is no service {name[:40]!r}. There are: {known}.")
        return found[0]

    def team_named(self, name: str) -> Row:
        """Return a team by its name.

        Raises:
            ToolError: there is none.
        """
        found = self.find("teams", name=name.strip().lower())
        if not found:
            known = ", ".join(row["name"] for row in self.find("teams"))
            raise ToolError(f"There is no team {name[:40]!r}. There are: {known}.")
        return found[0]

    def on_call(self, team: int, level: str, week: str = "this") -> Row:
        """Return the turn of a team."""
        return self.find("oncall", team=team, level=level, week=week)[0]

    def shown_of(self, table: str, service: str | None = None, **equal: Any) -> list[Row]:
        """Return the rows of a service, or of all, as agents see them."""
        key = None if service is None else self.service(service)["id"]
        return [self.public(row) for row in self.find(table, service=key, **equal)]

    def public(self, row: Row) -> Row:
        """Return a row as agents see it."""
        seen: Row = {}
        for name, value in row.items():
            if name in HIDDEN:
                continue
            if name in NAMED and isinstance(value, int):
                value = self.row(NAMED[name], value)["name"] if value else None
            elif name in TIMES:
                value = shown(value) if value else None
            seen[name] = value
        return seen

    def measures(self) -> dict[int, Measure]:
        """Return the condition of each service."""
        return System(self._tables(), self.now).measures()

    def _fact(self, key: str) -> str:
        value: str = self.db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()[0]
        return value
