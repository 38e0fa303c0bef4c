"""Define `SQLiteWorld`, an SQLite database. Saved with SQLite's backup API (sqlite.org/backup.html)."""

from __future__ import annotations

import base64
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .world import Tree

BUSY_S = 30.0
"""Maximum seconds that a database by path waits for a lock of another process."""


class SQLiteWorld:
    """An SQLite database, given as a connection, or as a file that another process may write.

    Captured as ``{table: {primary key: {column: value}}}``. The columns of a compound key are joined by ",". A table
    without a key is keyed by its rowid. Keys that have the same text get the suffixes "#2", "#3". Blobs are base64
    text.

    For a connection, capture the main database, including uncommitted writes. For a file, capture committed data only.
    A file that does not exist has no tables.

    Args:
        database: the environment's own connection, or the path of a file. SQLite allows a connection only one thread:
            set ``THREAD_AFFINE = True`` in the class, or open it with ``check_same_thread=False``.
        ignore: tables that are not part of the state.
    """

    def __init__(self, database: sqlite3.Connection | str | os.PathLike[str], *, ignore: tuple[str, ...] = ()) -> None:
        self._database = database if isinstance(database, sqlite3.Connection) else Path(database)
        self._ignore = frozenset(ignore)

    def capture(self) -> Tree:
        """Return every row of every table.

        Raises:
            sqlite3.Error: another process has locked the file for too long, or it is not a database.
        """
        if isinstance(self._database, Path) and not self._database.exists():
            return {}
        with self._connected() as connection:
            if connection is not self._database:
                connection.execute("BEGIN")  # read all tables in one transaction
            return _Reader(connection).tables(self._ignore)

    def save(self) -> bytes:
        """Return the database as the content of a file; nothing if the file does not exist."""
        if isinstance(self._database, Path) and not self._database.exists():
            return b""
        with self._connected() as connection:
            if connection.in_transaction:
                return connection.serialize()  # a backup would wait for the end of the transaction forever
            with closing(sqlite3.connect(":memory:")) as copy:
                connection.backup(copy)
                return copy.serialize()

    def load(self, saved: bytes) -> None:
        """Replace the database; an open transaction is rolled back first. Other processes see the new content.

        Raises:
            sqlite3.Error: if another connection has locked the file.
        """
        with self._connected(create=True) as connection, closing(sqlite3.connect(":memory:")) as copy:
            if saved:
                # A database in memory has no write-ahead log: its header must not name one (c3ref/deserialize).
                copy.deserialize(saved[:18] + b"\1\1" + saved[20:])
            connection.rollback()
            copy.backup(connection)

    def held(self) -> tuple[object, ...]:
        """Return the connection, or the file, which is a place."""
        return (self._database,)

    @contextmanager
    def _connected(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection, or one to the file."""
        if isinstance(self._database, sqlite3.Connection):
            yield self._database
            return
        # Not read-only: then SQLite could not roll back the uncommitted writes of a killed process.
        address = f"{self._database.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        try:
            with closing(sqlite3.connect(address, timeout=BUSY_S, uri=True, isolation_level=None)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")  # another process may have written the schema
                yield connection
        except sqlite3.Error as error:
            raise type(error)(f"{self._database}: {error}") from error


class _Reader:
    """The reader of all rows of a connection's main database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def tables(self, ignore: frozenset[str]) -> Tree:
        names = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return {name: self._rows(name) for (name,) in self._ask(names) if name not in ignore}

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
            tree[free_key(written, tree)] = dict(zip(names, map(_plain, row[width:]), strict=True))
        return tree

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.row_factory = None
            return cursor.execute(query).fetchall()


def free_key(key: str, tree: Tree) -> str:
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
