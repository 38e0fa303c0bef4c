"""A system that a seed makes: its services, what they need and have, its teams and its rules."""

from __future__ import annotations

import datetime
import functools
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from mcpenv.extensions.generated_worlds import Row, Tables, write_rows

from . import names
from .policy import TITLE, Policy
from .schema import COLUMNS, SCHEMA, TEXTS

DAY = 1440
"""Minutes."""
EPOCH = datetime.datetime(2026, 1, 1)
"""The minute 0."""
KINDS = ("edge", "app", "database", "cache", "provider")
"""The kinds of services."""


@dataclass(frozen=True)
class Plan:
    """A system at the start of an episode. Whoever changes rows changes a copy.

    Attributes:
        tables: the rows.
        policy: the rules.
        now: the minute of the episode, since the beginning of 2026.
        team: the team of the agent.
        user: the person for whom the agent works.
    """

    tables: Tables
    policy: Policy
    now: int
    team: Row
    user: Row


@functools.lru_cache(maxsize=128)
def system_of(seed: int, canary: str = "") -> Plan:
    """Return the system of a seed. It is shared: copy what you change.

    Args:
        seed: another seed makes another system.
        canary: a line at the end of each text.
    """
    plan = _Builder(random.Random(seed)).plan()
    if canary:
        for table, column in TEXTS.items():
            for row in plan.tables[table].values():
                row[column] = f"{row[column]}\n{canary}"
    return plan


@functools.lru_cache(maxsize=64)
def database_of(seed: int, canary: str = "") -> bytes:
    """Return the database of a system, as the content of a file."""
    plan = system_of(seed, canary)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        for table, rows in plan.tables.items():
            write_rows(db, COLUMNS[table], table, list(rows.values()))
        facts = {"user": str(plan.user["id"]), "team": str(plan.team["id"])}
        db.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())
        db.commit()
        return db.serialize()


class _Builder:
    """Makes one system, table by table."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.policy = Policy.drawn(rng)
        self.now = rng.randrange(30, 700) * DAY + rng.randrange(6 * 60, 22 * 60)
        self.tables: Tables = {table: {} for table in COLUMNS if table != "facts"}

    def plan(self) -> Plan:
        rng = self.rng
        self._add("clock", minute=self.now)
        self._people()
        self._services()
        for service in self._rows("services"):
            self._parts(service)
        self._links()
        self._queues()
        self._texts()
        team = self.tables["teams"][1]
        user = rng.choice([p for p in self._rows("people") if p["team"] == 1 and p["role"] == "engineer"])
        return Plan(self.tables, self.policy, self.now, team, user)

    def _add(self, table: str, **columns: object) -> Row:
        rows = self.tables[table]
        # With gaps after the first, or a row would have the same id in each system.
        row: Row = {"id": max(rows) + self.rng.randint(1, 6) if rows else 1, **columns}
        assert tuple(row) == COLUMNS[table], (table, tuple(row))
        rows[row["id"]] = row
        return row

    def _rows(self, table: str) -> list[Row]:
        return list(self.tables[table].values())

    def _ago(self, first: int, last: int) -> int:
        """Return a minute some days ago."""
        return self.now - self.rng.randint(first * DAY, last * DAY)

    def _somebody(self) -> int:
        return int(self.rng.choice(self._rows("people"))["id"])

    def _people(self) -> None:
        rng = self.rng
        every = [f"{first} {last}" for first in names.FIRST for last in names.LAST]
        called = rng.sample(every, 20)
        for name in rng.sample(names.TEAMS, 4):
            team = self._add("teams", name=name, lead=0)
            members = [
                self._add(
                    "people",
                    name=called.pop(),
                    team=team["id"],
                    role="engineer" if n else "lead",
                    phone=f"+{rng.randint(30, 49)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}",
                )
                for n in range(5)
            ]
            team["lead"] = members[0]["id"]
            turns = rng.sample(members[1:], 4)
            for week, level in (("this", "primary"), ("this", "secondary"), ("next", "primary"), ("next", "secondary")):
                self._add("oncall", team=team["id"], week=week, level=level, person=turns.pop()["id"])

    def _services(self) -> None:
        rng = self.rng
        others = [team["id"] for team in self._rows("teams")][1:]
        foreign = {*rng.sample(range(12), 3)}
        plan: list[tuple[str, str, int]] = [("gateway", "edge", 1), ("web", "edge", 1)]
        plan += [
            (name, "app", rng.choice(others) if n in foreign else 1)
            for n, name in enumerate(rng.sample(names.APPS, 12))
        ]
        plan += [
            (name, "database", team)
            for name, team in zip(rng.sample(names.DATABASES, 3), (1, 1, others[0]), strict=True)
        ]
        plan += [("cache", "cache", 1), *((name, "provider", others[1]) for name in rng.sample(names.PROVIDERS, 2))]
        for name, kind, team in plan:
            replicas, capacity = (
                (rng.randint(3, 8), rng.randrange(50, 400, 10)) if kind in ("edge", "app") else (1, 9000)
            )
            memory = rng.choice([512, 1024, 2048, 4096])
            self._add(
                "services",
                name=name,
                team=team,
                tier=1 if kind in ("edge", "database") else rng.randint(1, 3),
                kind=kind,
                address=f"10.{rng.randint(0, 99)}.{rng.randint(0, 254)}.{rng.randint(1, 254)}",
                state="running",
                replicas=replicas,
                max_replicas=replicas * 4,
                capacity=capacity,
                traffic=replicas * capacity * rng.randint(25, 45) // 100,
                memory_mb=memory,
                needs_mb=memory * rng.randint(50, 80) // 100,
                warm_up=rng.choice([20, 30, 45]) if kind in ("cache", "database") else 0,
                started_at=self._ago(2, 20),
                restarts=0,
                stuck=0,
            )

    def _parts(self, service: Row) -> None:
        """Add what one service has."""
        rng, key, kind = self.rng, service["id"], service["kind"]
        if kind == "provider":
            return
        self._add(
            "records",
            service=key,
            name=f"{service['name']}.svc.internal",
            address=service["address"],
            changed_at=self._ago(30, 90),
            changed_by=self._somebody(),
        )
        for metric, threshold in (("errors", 5), ("latency", 500)):
            self._add("alerts", service=key, metric=metric, threshold=threshold, silenced_until=0, silenced_for=0)
        if kind == "database":
            primary, standby = (f"{service['name']}-{letter}" for letter in "ab")
            self._add(
                "databases",
                service=key,
                primary_node=primary,
                standby=standby,
                lag_s=rng.randint(0, 1),
                primary_ok=1,
                max_connections=0,
                failovers=0,
                lost_s=0,
            )
        else:
            self._deployments(service)
        for name in rng.sample(list(names.SETTINGS), 3):
            value = rng.choice(names.SETTINGS[name])
            self._setting(key, name, value)
        if kind == "app":
            for name in rng.sample(names.FLAGS, 2):
                self._flag(key, f"{service['name']}-{name}", f"Turns on {name.replace('-', ' ')}", rng.randint(0, 1))
        if kind in ("app", "edge"):
            host = f"{service['name']}.example"
            self._add(
                "certificates", service=key, host=host, expires_at=self.now + DAY * rng.randint(40, 300), renewals=0
            )
            for letter in "abcd":
                self._add("nodes", service=key, name=f"{service['name']}-node-{letter}", serving=1, faulty=0)
        job = self._job(key, "log-cleanup")
        size = rng.choice([40, 80, 100, 200])
        self._add(
            "disks",
            service=key,
            mount=f"/var/lib/{service['name']}",
            size_gb=size,
            used_gb=size * rng.randint(30, 60) // 100,
            junk_gb=size * rng.randint(10, 20) // 100,
            since=self.now,
            growth=0,
            job=job["id"],
        )
        if kind == "app":
            self._job(key, rng.choice(["report", "reindex", "sync-rates"]))

    def _deployments(self, service: Row) -> None:
        rng = self.rng
        major, minor = rng.randint(1, 9), rng.randint(2, 40)
        for n, days in enumerate((30, 16, 3)):
            self._add(
                "deployments",
                service=service["id"],
                version=f"{major}.{minor + n}.{rng.randint(0, 9)}",
                at=self._ago(days, days + 10),
                author=self._somebody(),
                summary=rng.choice(names.SUMMARIES),
                migration=0,
                status="live" if n == 2 else "previous",
                defect="",
            )

    def _setting(self, service: int, name: str, value: str) -> None:
        self._add(
            "settings",
            service=service,
            name=name,
            value=value,
            previous=value,
            changed_at=self._ago(20, 60),
            changed_by=self._somebody(),
            wanted=value,
        )

    def _flag(self, service: int, name: str, purpose: str, enabled: int) -> Row:
        return self._add(
            "flags",
            service=service,
            name=name,
            purpose=purpose,
            enabled=enabled,
            changed_at=self._ago(5, 60),
            changed_by=self._somebody(),
            defect=0,
        )

    def _job(self, service: int, name: str) -> Row:
        schedule = names.JOBS[name]
        return self._add(
            "jobs",
            service=service,
            name=name,
            schedule=schedule,
            previous=schedule,
            enabled=1,
            changed_at=self._ago(20, 90),
            changed_by=self._somebody(),
            wanted=schedule,
        )

    def _links(self) -> None:
        """Add what each service needs. Nothing needs a service that stands before it."""
        rng = self.rng
        by_kind = {kind: [s for s in self._rows("services") if s["kind"] == kind] for kind in KINDS}
        (gateway, web), apps = by_kind["edge"], by_kind["app"]
        self._link(web, gateway)
        for app in apps[:4]:
            self._link(gateway, app)
        for n, app in enumerate(apps[:-2]):
            for needed in rng.sample(apps[max(n + 1, 4 if n < 4 else 0) :], 2 if n < 4 else 1):
                self._link(app, needed)
        for app in apps:
            database = rng.choice(by_kind["database"])
            if rng.random() < 0.7:
                self._link(app, database)
                self._setting(app["id"], "pool_size", str(rng.choice([5, 8, 10])))
                self._credential(app, f"{database['name']} login")
            elif rng.random() < 0.6:
                self._link(app, by_kind["cache"][0])
        own = [app for app in apps if app["team"] == 1]
        for n, provider in enumerate(by_kind["provider"]):
            app = own[n]
            name = f"{app['name']}-without-{provider['name']}"
            purpose = f"Fallback: works without {provider['name']} while it is out"
            flag = None if n else self._flag(app["id"], name, purpose, 0)
            self._link(app, provider, flag)
            self._credential(app, f"{provider['name']} key")
        for row in self._rows("databases"):
            users = {link["service"] for link in self._rows("links") if link["needs"] == row["service"]}
            pools = [s for s in self._rows("settings") if s["name"] == "pool_size" and s["service"] in users]
            used = sum(int(pool["value"]) * self.tables["services"][pool["service"]]["replicas"] for pool in pools)
            # There is room for twice as much, so that a service may be scaled.
            row["max_connections"] = (used // 50 + 1) * 100 + 100

    def _link(self, service: Row, needed: Row, fallback: Row | None = None) -> None:
        if any(link["service"] == service["id"] and link["needs"] == needed["id"] for link in self._rows("links")):
            return
        self._add("links", service=service["id"], needs=needed["id"], fallback=fallback["id"] if fallback else 0)
        if needed["kind"] == "app":
            figure = self.rng.randrange(600, 6000, 100)
            self._add(
                "limits",
                limiter=needed["id"],
                service=service["id"],
                per_minute=figure,
                changed_at=self._ago(20, 90),
                changed_by=self._somebody(),
                wanted=figure,
            )

    def _credential(self, service: Row, target: str) -> None:
        self._add(
            "credentials",
            service=service["id"],
            target=target,
            expires_at=self.now + DAY * self.rng.randint(40, 300),
            rotations=0,
        )

    def _queues(self) -> None:
        rng = self.rng
        apps = [s for s in self._rows("services") if s["kind"] == "app"]
        for name in rng.sample(names.QUEUES, 5):
            producer, consumer = rng.sample(apps, 2)
            self._add(
                "queues",
                name=f"{consumer['name']}-{name}",
                producer=producer["id"],
                service=consumer["id"],
                consuming=1,
                rate=rng.randint(5, 60),
                depth=rng.randint(0, 40),
                since=self.now,
                poison="",
                lost=0,
            )

    def _texts(self) -> None:
        """Add runbooks, past incidents, tickets, freezes and lines of logs."""
        rng = self.rng
        self._add("runbooks", title=TITLE, service=0, updated=self._date(40), body=self.policy.text())
        services = [s for s in self._rows("services") if s["kind"] in ("app", "edge")]
        for service in services:
            team = self.tables["teams"][service["team"]]["name"]
            body = f"{service['name']} belongs to {team}. Look at its log and its metrics, then at what it needs."
            self._add(
                "runbooks",
                title=f"How to look after {service['name']}",
                service=service["id"],
                updated=self._date(rng.randint(50, 300)),
                body=body,
            )
        for n, service in enumerate(rng.sample(services, 4)):
            incident = self._add(
                "incidents",
                title=f"Errors in {service['name']}",
                service=service["id"],
                severity=rng.choice(["sev2", "sev3"]),
                status="resolved" if n else "open",
                opened_at=self._ago(5, 60),
                commander=self._somebody(),
                cause="" if not n else "bad deployment",
                impact="",
                lesson="",
            )
            self._add(
                "timeline",
                incident=incident["id"],
                at=incident["opened_at"] + 5,
                author=self._somebody(),
                body="Looking.",
            )
        for service in rng.sample(services, 4):
            ticket = self._add(
                "tickets",
                service=service["id"],
                title=f"Question about {service['name']}",
                body="What does this service do at night?",
                status="open",
                requester=self._somebody(),
            )
            self._add("comments", ticket=ticket["id"], author=self._somebody(), body="I will look at it.")
        for days, service in zip((-9, 6), rng.sample(services, 2), strict=True):
            first = self.now + days * DAY
            self._add("freezes", service=service["id"], first=first, last=first + DAY, reason=rng.choice(names.REASONS))
        for service in services:
            self._add("lines", service=service["id"], at=self._ago(0, 1), level="INFO", body=rng.choice(names.NOISE))
        self._add(
            "approvals", service=1, action="rollback", approver=self.tables["teams"][1]["lead"], at=self._ago(60, 90)
        )
        self._add("pages", team=1, person=self._somebody(), at=self._ago(60, 90), message="A test of paging.")
        for service in self._rows("services"):
            self.tables["health"][service["id"]] = {"id": service["id"], "state": "ok"}

    def _date(self, days_ago: int) -> str:
        return shown(self.now - days_ago * DAY)[:10]


def shown(minute: int) -> str:
    """Return a minute as text, such as "2026-03-04 09:12"."""
    return (EPOCH + datetime.timedelta(minutes=minute)).strftime("%Y-%m-%d %H:%M")
