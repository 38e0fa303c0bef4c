"""Define `SQLiteWorld`, an SQLite database. Saved with SQLite's backup API (sqlite.org/backup.html)."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from typing import Any

from .world import Tree


class SQLiteWorld:
    """The main database of a connection, including uncommitted writes of its open transaction.

    Captured as ``{table: {primary key: {column: value}}}``. The columns of a compound key are joined by ",". A table
    without a key is keyed by its rowid. Keys that have the same text get the suffixes "#2", "#3". Blobs are base64
    text.

    Args:
        connection: the environment's own. SQLite allows only one thread: set ``THREAD_AFFINE = True`` in the class, or
            open it with ``check_same_thread=False``.
        ignore: tables that are not part of the state.
    """

    def __init__(self, connection: sqlite3.Connection, *, ignore: tuple[str, ...] = ()) -> None:
        self._connection = connection
        self._ignore = frozenset(ignore)

    def capture(self) -> Tree:
        """Return every row of every table."""
        names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return {name: self._rows(name) for (name,) in self._ask(names) if name not in self._ignore}

    def save(self) -> bytes:
        """Return the database as the content of a file."""
        if self._connection.in_transaction:
            return self._connection.serialize()  # a backup would wait for the end of the transaction forever
        with closing(sqlite3.connect(":memory:")) as copy:
            self._connection.backup(copy)
            return copy.serialize()

    def load(self, saved: bytes) -> None:
        """Replace the database; an open transaction is rolled back first.

        Raises:
            sqlite3.Error: if another connection has locked the file.
        """
        with closing(sqlite3.connect(":memory:")) as copy:
            copy.deserialize(saved)
            self._connection.rollback()
            copy.backup(self._connection)

    def held(self) -> tuple[object, ...]:
        """Return the connection."""
        return (self._connection,)

    def _rows(self, table: str) -> Tree:
        # Without "main", a temporary table of the same name, which an agent can create, would take precedence.
        columns = self._ask(f"SELECT name, pk FROM pragma_table_info({_text(table)}, 'main')")
        key = [name for name, place in sorted(columns, key=lambda column: column[1]) if place]
        names = [name for name, _ in columns]
        of_key = ", ".join(map(_name, key)) or "rowid"
        rows = self._ask(f"SELECT {of_key}, {', '.join(map(_name, names))} FROM main.{_name(table)} ORDER BY {of_key}")
        width = len(key) or 1
        tree: Tree = {}
        for row in rows:
            written = ",".join(str(_plain(part)) for part in row[:width])
            tree[_free(written, tree)] = dict(zip(names, map(_plain, row[width:]), strict=True))
        return tree

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.row_factory = None
            return cursor.execute(query).fetchall()


def _free(key: str, tree: Tree) -> str:
    """Return a unique key. 1 and '1' have the same text, and so have ("a,b", "c") and ("a", "b,c")."""
    number, free = 1, key
    while free in tree:
        number += 1
        free = f"{key}#{number}"
    return free


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    return base64.urlsafe_b64encode(value).decode() if isinstance(value, bytes) else value
