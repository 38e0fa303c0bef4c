"""Define `SQLiteWorld`, an SQLite database. Saved with SQLite's backup API (sqlite.org/backup.html)."""

from __future__ import annotations

import base64
import functools
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from mcpenv.errors import WorldUnreadable
from mcpenv.worlds.world import Budget, Tree, free_key, left_of_capture

BUSY_S = 30.0
"""Maximum seconds that a database by path waits for a lock of another process."""

MAX_BYTES = 128 << 20
"""Maximum bytes of a capture: texts, blobs, and 16 for each value."""

EACH = 16

_SIZED = (str, bytes)

_COUNTED = 1 << 16
"""The bytes of rows that are counted together, because a count costs as much as a row."""

_OF_MACHINE = frozenset({sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_FULL})
"""The error codes of SQLite that come from the machine."""

_OF_FILES = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
"""The error codes of SQLite that come from the machine, or from what stands in the place of its files."""


class SQLiteWorld:
    """An SQLite database, given as a connection, or as a file that another process may write.

    Captured as ``{table: {primary key: {column: value}}}``. The columns of a compound key are joined by ",". A table
    without a key is keyed by its rowid. Keys that have the same text get the suffixes "#2", "#3". Blobs are base64
    text. Bytes of a text that are not UTF-8 are U+FFFD. Converters, ``text_factory`` and ``row_factory`` of a
    connection do not apply; views are not part of the state.

    For a connection, capture the main database, including uncommitted writes. For a file, capture committed data only.
    A file that does not exist has no tables.

    Args:
        database: the environment's own connection, or the path of a file. SQLite allows a connection only one thread:
            set ``THREAD_AFFINE = True`` in the class, or open it with ``check_same_thread=False``.
        ignore: tables that are not part of the state.
        max_bytes: maximum bytes of a capture. An agent may add a column whose default makes each row large.
    """

    def __init__(
        self,
        database: sqlite3.Connection | str | os.PathLike[str],
        *,
        ignore: tuple[str, ...] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._database = database if isinstance(database, sqlite3.Connection) else Path(database)
        self._ignore = frozenset(ignore)
        self._max_bytes = max_bytes

    def capture(self) -> Tree:
        """Return every row of every table.

        Raises:
            WorldUnreadable: another process has locked the file for too long, it is damaged, no database, too large,
                takes too long, may not be read, or something else stands in its place or in that of its journal.
            sqlite3.Error: the machine failed.
        """
        if isinstance(self._database, Path) and not os.path.exists(self._database):
            return {}
        budget = Budget("the database", self._max_bytes)
        try:
            with self._connected(left_of_capture()) as connection, _as_stored(connection, self._max_bytes):
                if connection is not self._database:
                    connection.execute("BEGIN")  # read all tables in one transaction
                return _Reader(connection, budget).tables(self._ignore)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code is None or code & 0xFF in _OF_MACHINE or (code & 0xFF in _OF_FILES and not self._displaced()):
                raise
            if code == sqlite3.SQLITE_INTERRUPT:
                raise WorldUnreadable("the database takes too long to read") from error
            raise WorldUnreadable(str(error)) from error

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

    def _displaced(self) -> bool:
        """Return True if a folder, a link or the like stands in the place of a file of SQLite, or one is denied."""
        if isinstance(self._database, sqlite3.Connection):
            return False
        files = [Path(f"{self._database}{end}") for end in ("", "-journal", "-wal", "-shm")]
        there = [file for file in files if os.path.lexists(file)]
        return any(
            not stat.S_ISREG(file.lstat().st_mode) or not os.access(file, os.R_OK | os.W_OK) for file in there
        ) or not os.access(self._database.parent, os.R_OK | os.W_OK | os.X_OK)

    @contextmanager
    def _connected(self, within_s: float | None = None, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the connection, or one to the file.

        Args:
            within_s: maximum seconds to wait for a lock, if less than `BUSY_S`.
        """
        if isinstance(self._database, sqlite3.Connection):
            yield self._database
            return
        # Not read-only: then SQLite could not roll back the uncommitted writes of a killed process.
        address = f"{self._database.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        try:
            busy_s = BUSY_S if within_s is None else min(BUSY_S, within_s)
            with closing(sqlite3.connect(address, timeout=busy_s, uri=True, isolation_level=None)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")  # another process may have written the schema
                yield connection
        except sqlite3.Error as error:
            named = type(error)(f"{self._database}: {error}")
            if hasattr(error, "sqlite_errorcode"):
                named.sqlite_errorcode = error.sqlite_errorcode
            raise named from error


@contextmanager
def _as_stored(connection: sqlite3.Connection, max_bytes: int) -> Iterator[None]:
    """Read the values of a connection as they are stored, none larger than ``max_bytes``, and in the capture's time."""
    factory, connection.text_factory = connection.text_factory, _text_of
    longest = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(longest, max_bytes))  # a value is made before it is counted
    left_s = left_of_capture()
    timer = None if left_s is None else threading.Timer(left_s, connection.interrupt)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()  # or else it could interrupt a later query
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        connection.text_factory = factory


_text_of = functools.partial(str, encoding="utf-8", errors="replace")  # without a Python frame for each text


class _Reader:
    """The reader of all rows of a connection's main database."""

    def __init__(self, connection: sqlite3.Connection, budget: Budget) -> None:
        self._connection, self._budget = connection, budget

    def tables(self, ignore: frozenset[str]) -> Tree:
        names = "SELECT +name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        return {name: self._rows(name) for (name,) in list(self._ask(names)) if name not in ignore}

    def _rows(self, table: str) -> Tree:
        # Without "main", a temporary table of the same name, which an agent can create, would take precedence.
        columns = list(self._ask(f"SELECT +name, +pk FROM pragma_table_info({_text(table)}, 'main')"))
        key = [name for name, place in sorted(columns, key=lambda column: column[1]) if place]
        names = [name for name, _ in columns]
        of_key = [*map(_name, key)] or ["rowid"]
        # Without the sign, converters would apply, which are chosen by the type or the name of a column.
        asked = ", ".join(f"+{column} AS c" for column in (*of_key, *map(_name, names)))
        # With the table's name, because a key could have the name "c" too.
        order = ", ".join(f"{_name(table)}.{column}" for column in of_key)
        rows = self._ask(f"SELECT {asked} FROM main.{_name(table)} ORDER BY {order}")
        width = len(key) or 1
        tree: Tree = {}
        for row in rows:
            values = tuple(map(_plain, row)) if bytes in map(type, row) else row
            written = ",".join(map(str, values[:width]))
            tree[free_key(written, tree)] = dict(zip(names, values[width:], strict=True))
        return tree

    def _ask(self, query: str) -> Iterator[tuple[Any, ...]]:
        size = 0
        with closing(self._connection.cursor()) as cursor:
            cursor.row_factory = None
            for row in cursor.execute(query):
                for each in row:
                    size += EACH if type(each) not in _SIZED else EACH + len(each)
                if size > _COUNTED:
                    self._budget.take(size)
                    size = 0
                yield row
        self._budget.take(size)


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    return base64.urlsafe_b64encode(value).decode() if isinstance(value, bytes) else value
