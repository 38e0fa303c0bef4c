"""The database as tools see it: rows by id, with errors that tell an agent what to do."""

from __future__ import annotations

import sqlite3
from typing import Any

from mcpenv import ToolError

from .schema import Row

FINDERS = {
    "people": "search_people",
    "rooms": "list_rooms",
    "mails": "search_mails",
    "events": "list_events",
    "accounts": "search_accounts",
    "contacts": "search_contacts",
    "tickets": "search_tickets",
    "documents": "search_documents",
    "channels": "list_channels",
    "messages": "read_channel",
    "projects": "list_projects",
    "tasks": "list_tasks",
    "leaves": "list_leave",
    "expenses": "list_expenses",
    "products": "search_products",
    "orders": "search_orders",
}
"""The tool that finds the ids of a table."""

NOUNS = {"people": "person", "leaves": "leave"}

MOST = 50
"""Maximum number of rows of a list."""


class Desk:
    """The company's database in one episode.

    Args:
        db: the connection, which is reset with each episode.

    Attributes:
        requests: the number of the user's requests in this episode; None if it is not known.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.requests: int | None = None
        db.row_factory = sqlite3.Row

    @property
    def today(self) -> str:
        """The day of the episode, as "2026-03-04"."""
        return self._fact("today")

    @property
    def user(self) -> Row:
        """The person for whom the agent works."""
        return self.row("people", int(self._fact("user")))

    def all(self, query: str, *values: Any) -> list[Row]:
        """Return the rows of a query, `MOST` of them."""
        return [dict(row) for row in self.db.execute(f"{query} LIMIT {MOST}", values)]

    def find(
        self, table: str, columns: str = "*", like: tuple[str, str | None] = ("", None), **equal: Any
    ) -> list[Row]:
        """Return rows by the values of columns. None is no condition.

        Args:
            table: the table.
            columns: the columns of the answer, as SQL.
            like: columns with a space between them, and a text that one of them has.
            equal: values by column.
        """
        given = {name: value for name, value in equal.items() if value is not None}
        where = [f"{name} = ?" for name in given]
        values = [*given.values()]
        names, text = like
        if text is not None:
            # Each word must be there, so that the order of words does not matter.
            for word in text.split():
                where.append("(" + " OR ".join(f"instr(lower({name}), lower(?))" for name in names.split()) + ")")
                values += [word] * len(names.split())
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return self.all(f"SELECT {columns} FROM {table}{condition} ORDER BY id", *values)

    def row(self, table: str, key: int) -> Row:
        """Return one row.

        Raises:
            ToolError: there is none.
        """
        # SQLite's integers have 64 bits.
        found = self.db.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchone() if abs(key) < 2**63 else None
        if found is None:
            noun = NOUNS.get(table, table.removesuffix("s"))
            raise ToolError(f"There is no {noun} {key}. Find its id with {FINDERS[table]}.")
        return dict(found)

    def person_of_mail(self, address: str) -> Row | None:
        """Return the colleague with an address; None if it belongs to nobody here."""
        found = self.find("people", email=address.strip().lower())
        return found[0] if found else None

    def insert(self, table: str, **columns: Any) -> Row:
        """Add a row and return it."""
        places = ", ".join("?" * len(columns))
        made = self.db.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) RETURNING *", [*columns.values()]
        ).fetchall()
        return dict(made[0])

    def update(self, table: str, key: int, **columns: Any) -> Row:
        """Change a row and return it.

        Raises:
            ToolError: there is none.
        """
        self.row(table, key)
        sets = ", ".join(f"{name} = ?" for name in columns)
        self.db.execute(f"UPDATE {table} SET {sets} WHERE id = ?", [*columns.values(), key])
        return self.row(table, key)

    def _fact(self, key: str) -> str:
        value: str = self.db.execute("SELECT value FROM company WHERE key = ?", (key,)).fetchone()[0]
        return value
