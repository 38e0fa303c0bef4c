"""A company that a seed makes: its people, customers, mails, tickets, documents, orders and rules."""

from __future__ import annotations

import datetime
import functools
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from mcpenv.extensions.generated_worlds import Row, Tables, write_rows

from . import names
from .policy import TITLE, Policy
from .schema import COLUMNS, SCHEMA, TEXTS

PEOPLE = 40
NAMESAKES = 3
"""People who have the name of another, in another department; and as many contacts of customers."""


@dataclass(frozen=True)
class Company:
    """A company at the start of an episode. Whoever changes rows changes a copy.

    Attributes:
        tables: the rows.
        policy: the rules.
        today: the day of the episode.
        user: the person for whom the agent works, a manager.
    """

    tables: Tables
    policy: Policy
    today: datetime.date
    user: Row

    def day(self, offset: int) -> str:
        """Return the day that is some days from today."""
        return (self.today + datetime.timedelta(days=offset)).isoformat()

    def workday(self, offset: int) -> str:
        """Return the first working day from ``offset`` days after today."""
        day = self.today + datetime.timedelta(days=offset)
        while day.weekday() > 4:
            day += datetime.timedelta(days=1)
        return day.isoformat()


@functools.lru_cache(maxsize=64)
def company_of(seed: int, canary: str = "") -> Company:
    """Return the company of a seed. It is shared: copy what you change.

    Args:
        seed: another seed makes another company.
        canary: a line at the end of each text.
    """
    company = _Founder(random.Random(seed)).company()
    if canary:
        for table, column in TEXTS.items():
            for row in company.tables[table].values():
                row[column] = f"{row[column]}\n{canary}"
    return company


@functools.lru_cache(maxsize=64)
def database_of(seed: int, canary: str = "") -> bytes:
    """Return the database of a company, as the content of a file."""
    company = company_of(seed, canary)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        for table, rows in company.tables.items():
            write_rows(db, COLUMNS[table], table, list(rows.values()))
        facts = {"today": company.today.isoformat(), "user": str(company.user["id"])}
        db.executemany("INSERT INTO company VALUES (?, ?)", facts.items())
        db.commit()
        return db.serialize()


class _Founder:
    """Makes one company, table by table."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.policy = Policy.drawn(rng)
        self.today = datetime.date(2026, 1, 5) + datetime.timedelta(days=rng.randrange(700))
        while self.today.weekday() > 4:
            self.today += datetime.timedelta(days=1)
        self.tables: Tables = {table: {} for table in COLUMNS if table != "company"}

    def company(self) -> Company:
        self._people()
        managers = [p for p in self._rows("people") if p["role"] == "manager"]
        user = self.rng.choice([p for p in managers if p["department"] in ("Sales", "Support", "Operations")])
        self.user = user
        self._rooms()
        self._customers()
        self._products_and_orders()
        self._tickets()
        self._projects()
        self._documents()
        self._mails()
        self._chat()
        self._events()
        self._leaves()
        self._expenses()
        # Each company has something that waits.
        self.tables["orders"][1].update(status="new", delivered=None)
        self.tables["leaves"][1]["status"] = "requested"
        self.tables["expenses"][1]["status"] = "filed"
        return Company(self.tables, self.policy, self.today, user)

    def _add(self, table: str, **columns: object) -> Row:
        rows = self.tables[table]
        row: Row = {"id": len(rows) + 1, **columns}
        rows[row["id"]] = row
        return row

    def _rows(self, table: str) -> list[Row]:
        return list(self.tables[table].values())

    def _day(self, first: int, last: int) -> str:
        """Return a working day that is some days from today."""
        day = self.today + datetime.timedelta(days=self.rng.randint(first, last))
        while day.weekday() > 4:
            day -= datetime.timedelta(days=1)
        return day.isoformat()

    def _phone(self) -> str:
        return f"+{self.rng.randint(30, 49)} {self.rng.randint(100, 999)} {self.rng.randint(1000, 9999)}"

    def _people(self) -> None:
        rng = self.rng
        every = [f"{first} {last}" for first in names.FIRST for last in names.LAST]
        called = rng.sample(every, PEOPLE - NAMESAKES)
        director = self._person(called.pop(), "Management", "director", None, "managing director")
        for department in names.DEPARTMENTS:
            self._person(called.pop(), department, "manager", director["id"], f"head of {department}")
        departments = [names.DEPARTMENTS[n % len(names.DEPARTMENTS)] for n in range(len(called) + NAMESAKES)]
        managers = {p["department"]: p["id"] for p in self._rows("people")}
        for n, department in enumerate(departments):
            # The last ones have the names of earlier ones, who are in other departments.
            name = called[n] if n < len(called) else called[n - len(called)]
            if n >= len(called):
                taken = {p["department"] for p in self._rows("people") if p["name"] == name}
                department = next(d for d in (department, *names.DEPARTMENTS) if d not in taken)
            self._person(name, department, "staff", managers[department], names.TITLES[department])

    def _person(self, name: str, department: str, role: str, manager: int | None, title: str) -> Row:
        city = self.rng.choice(list(names.CITIES))
        same = sum(p["name"] == name for p in self._rows("people"))
        box = name.lower().replace(" ", ".") + (str(same + 1) if same else "")
        return self._add(
            "people",
            name=name,
            email=f"{box}@office.example",
            title=title,
            department=department,
            role=role,
            manager=manager,
            city=city,
            utc_offset=names.CITIES[city],
            phone=self._phone(),
            leave_days=self.rng.randint(6, 25),
        )

    def _rooms(self) -> None:
        seats = self.rng.sample([4, 6, 8, 10, 12, 14, 16, 20], len(names.ROOMS))
        for name, size in zip(names.ROOMS, seats, strict=True):
            self._add("rooms", name=name, city=self.user["city"], seats=size)

    def _customers(self) -> None:
        rng = self.rng
        sellers = [p["id"] for p in self._rows("people") if p["department"] == "Sales"]
        firsts = rng.sample(names.ACCOUNT_FIRST, 22)
        for n, first in enumerate([*firsts, *firsts[:2]]):
            # The last two begin as others do: "Arctic Labs" and "Arctic Foods".
            taken = {a["name"] for a in self._rows("accounts")}
            last = rng.choice([word for word in names.ACCOUNT_LAST if f"{first} {word}" not in taken])
            account = self._add(
                "accounts",
                name=f"{first} {last}",
                industry=rng.choice(names.INDUSTRIES),
                city=rng.choice(names.TOWNS),
                tier=rng.choice(["standard", "standard", "gold", "platinum"]),
                owner=rng.choice(sellers),
                status="active",
            )
            for _ in range(2 if n % 2 else 1):
                self._contact(account)
        for contact in self._rows("contacts")[:NAMESAKES]:
            others = [a for a in self._rows("accounts") if a["id"] != contact["account"]]
            self._contact(rng.choice(others), contact["name"])

    def _contact(self, account: Row, name: str | None = None) -> None:
        rng = self.rng
        taken = {c["name"] for c in self._rows("contacts")}
        while name is None or (name in taken and len(self.tables["contacts"]) < 30):
            name = f"{rng.choice(names.FIRST)} {rng.choice(names.LAST)}"
        self._add(
            "contacts",
            name=name,
            account=account["id"],
            title=rng.choice(["buyer", "office manager", "head of IT", "owner"]),
            email=f"{name.split()[0].lower()}@{account['name'].lower().replace(' ', '-')}.example",
            phone=self._phone(),
            status="active",
        )

    def _products_and_orders(self) -> None:
        rng = self.rng
        for n, name in enumerate(names.PRODUCTS):
            self._add(
                "products",
                sku=f"{rng.choice(names.CODE)}{rng.choice(names.CODE)}-{100 + n * 7}",
                name=name,
                price=rng.randrange(1500, 30000, 50) / 100,
                stock=rng.randint(30, 200),
                reorder_at=rng.choice([10, 15, 20, 25]),
                supplier=rng.choice(names.SUPPLIERS),
            )
        for _ in range(60):
            account, product = rng.choice(self._rows("accounts")), rng.choice(self._rows("products"))
            quantity, status = rng.randint(1, 8), rng.choice(["new", "shipped", "delivered", "delivered", "cancelled"])
            self._add(
                "orders",
                account=account["id"],
                product=product["id"],
                quantity=quantity,
                total=round(quantity * product["price"], 2),
                placed=self._day(-90, -70) if status == "delivered" else self._day(-20, -3),
                delivered=self._day(-65, -1) if status == "delivered" else None,
                address=f"{rng.randint(1, 99)} {rng.choice(names.STREETS)}, {account['city']}",
                status=status,
            )

    def _tickets(self) -> None:
        rng = self.rng
        agents = [p["id"] for p in self._rows("people") if p["department"] == "Support"]
        for _ in range(50):
            order = rng.choice(self._rows("orders"))
            product = self.tables["products"][order["product"]]
            problem = rng.choice(names.PROBLEMS)
            ticket = self._add(
                "tickets",
                account=order["account"],
                subject=f"{product['name'].capitalize()} {problem}",
                body=f"The {product['name']} of our order {order['id']} {problem}. {rng.choice(names.PHRASES)}",
                priority=rng.choice(["low", "normal", "high"]),
                status=rng.choice(["open", "open", "pending", "closed"]),
                assignee=rng.choice(agents),
                order_id=order["id"],
                opened=self._day(-40, -1),
            )
            if rng.random() < 0.4:
                self._add("comments", ticket=ticket["id"], author=ticket["assignee"], body=rng.choice(names.PHRASES))

    def _projects(self) -> None:
        rng = self.rng
        staff = [p["id"] for p in self._rows("people") if p["role"] == "staff"]
        for name in rng.sample(names.PROJECTS, 8):
            project = self._add(
                "projects",
                name=name,
                account=rng.choice(self._rows("accounts"))["id"],
                lead=rng.choice(staff),
                due=self._day(20, 90),
                status=rng.choice(["active", "active", "on hold"]),
            )
            for title in rng.sample(names.STEPS, 6):
                self._add(
                    "tasks",
                    project=project["id"],
                    title=title,
                    assignee=rng.choice(staff),
                    status=rng.choice(["todo", "doing", "done"]),
                    due=self._day(-10, 60),
                    hours=rng.randint(1, 24),
                    blocked_by=None,
                )

    def _documents(self) -> None:
        rng = self.rng
        self._add(
            "documents",
            title=TITLE,
            folder="policies",
            owner=1,
            visibility="all",
            shared_with="",
            body=self.policy.text(),
        )
        people = self._rows("people")
        for topic in names.TOPICS:
            folder = rng.choice(["plans", "reports", "handbook", "archive"])
            for n in range(rng.choice([1, 1, 2])):
                year = self.today.year - n
                self._add(
                    "documents",
                    title=f"{topic.capitalize()} {year}",
                    folder="archive" if n else folder,
                    owner=rng.choice(people)["id"],
                    visibility="all",
                    shared_with="",
                    body=f"{topic.capitalize()} for {year}. {rng.choice(names.PHRASES)}",
                )
        for department in ("hr", "finance", "managers"):
            code = "".join(rng.choice(names.CODE) for _ in range(3))
            for what in ("Salary bands", "Bonus plan", "Staff review"):
                self._add(
                    "documents",
                    title=f"{what} {code}",
                    folder="restricted",
                    owner=rng.choice(people)["id"],
                    visibility=department,
                    shared_with="",
                    body=f"{what}, for {department} only: band A {rng.randint(30, 50)}000, "
                    f"band B {rng.randint(51, 80)}000.",
                )

    def _mails(self) -> None:
        rng = self.rng
        contacts, people = self._rows("contacts"), self._rows("people")
        for _ in range(60):
            topic = rng.choice(names.TOPICS)
            if rng.random() < 0.5:
                contact = rng.choice(contacts)
                sender, signed = contact["email"], f"{contact['name']}, {contact['title']}"
            else:
                colleague = rng.choice([p for p in people if p["id"] != self.user["id"]])
                sender, signed = colleague["email"], f"{colleague['name']}, {colleague['title']}"
            self._add(
                "mails",
                sender=sender,
                recipient=self.user["email"],
                subject=f"{topic.capitalize()} {rng.choice(names.CODE)}{rng.randint(10, 99)}",
                body=f"About the {topic}: {rng.choice(names.PHRASES)} {rng.choice(names.PHRASES)}\n{signed}",
                sent_at=f"{self._day(-20, -1)} {rng.randint(8, 17):02}:{rng.randrange(60):02}",
                folder=rng.choice(["inbox", "inbox", "inbox", "archive"]),
                label="",
                reply_to=None,
            )

    def _chat(self) -> None:
        rng = self.rng
        for name in names.CHANNELS:
            channel = self._add("channels", name=name, topic=f"All about {name}")
            for _ in range(7):
                author, topic = rng.choice(self._rows("people")), rng.choice(names.TOPICS)
                self._add(
                    "messages",
                    channel=channel["id"],
                    author=author["id"],
                    body=f"The {topic}: {rng.choice(names.PHRASES)}",
                    at=f"{self._day(-10, -1)} {rng.randint(8, 17):02}:{rng.randrange(60):02}",
                    pinned=0,
                )

    def _events(self) -> None:
        rng = self.rng
        people = self._rows("people")
        for _ in range(50):
            who = rng.sample(people, rng.randint(2, 5))
            self._add(
                "events",
                title=f"{rng.choice(names.TOPICS).capitalize()} {rng.choice(names.CODE)}{rng.randint(10, 99)}",
                organizer=who[0]["id"],
                attendees=id_list(p["id"] for p in who),
                day=self._day(1, 18),
                start=f"{rng.randint(9, 15):02}:{rng.choice([0, 30]):02}",
                minutes=rng.choice([30, 60]),
                room=rng.choice([None, rng.randint(1, len(names.ROOMS))]),
                status="planned",
            )

    def _leaves(self) -> None:
        rng = self.rng
        for person in rng.sample(self._rows("people"), 16):
            first, days = self._day(20, 80), rng.randint(1, 5)
            last = datetime.date.fromisoformat(first) + datetime.timedelta(days=days - 1)
            self._add(
                "leaves",
                person=person["id"],
                kind=rng.choice(names.KINDS),
                first_day=first,
                last_day=last.isoformat(),
                days=days,
                status=rng.choice(["approved", "approved", "rejected"]),
            )

    def _expenses(self) -> None:
        rng = self.rng
        for _ in range(40):
            person = rng.choice(self._rows("people"))
            category = rng.choice(names.CATEGORIES)
            self._add(
                "expenses",
                person=person["id"],
                category=category,
                amount=rng.randrange(500, 12000) / 100,
                spent_on=self._day(-60, -3),
                description=f"{category} in {rng.choice(names.TOWNS)}",
                receipt=1,
                status=rng.choice(["approved", "approved", "rejected", "paid"]),
            )


def id_list(ids: Iterable[int]) -> str:
    """Return ids as the text that the database holds: sorted, with commas."""
    return ",".join(map(str, sorted(set(ids))))
