"""Rows of a generated world: in Python while a task is made, and in its database while an agent works."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv import ToolError

Row = dict[str, Any]

Tables = dict[str, dict[int, Row]]
"""Rows by table and id."""

Columns = Mapping[str, tuple[str, ...]]
"""The names of the columns of each table; the first one is the key."""

MOST = 50
"""Maximum number of rows of a list."""


def copies(tables: Tables) -> Tables:
    """Return tables that may be changed. Rows are replaced, never changed."""
    return {table: dict(rows) for table, rows in tables.items()}


def write_rows(db: sqlite3.Connection, columns: Sequence[str], table: str, rows: Sequence[Row]) -> None:
    """Write whole rows; those with a known id replace the ones there."""
    places = ", ".join("?" * len(columns))
    values = [tuple(row[column] for column in columns) for row in rows]
    db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", values)


class RowDesk:
    """The database as tools see it: rows by id, with errors that tell an agent what to do.

    Args:
        db: the connection, which is reset with each episode.
        finders: the tool that finds the ids of a table.
        nouns: the word for a row of a table, where it is not the table's name without its "s".

    Attributes:
        requests: the number of the user's requests in this episode; None if it is not known.
    """

    def __init__(self, db: sqlite3.Connection, finders: Mapping[str, str], nouns: Mapping[str, str]) -> None:
        self.db = db
        self.requests: int | None = None
        self._finders, self._nouns = finders, nouns
        db.row_factory = sqlite3.Row

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
            noun = self._nouns.get(table, table.removesuffix("s"))
            raise ToolError(f"There is no {noun} {key}. Find its id with {self._finders[table]}.")
        return dict(found)

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
