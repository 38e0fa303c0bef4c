"""The store in a folder: one SQLite database, which the servers of one machine share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpenv.errors import ConfigurationError

from .sql_store import SIZE, Execute, SqlStore
from .store import StoreError

FILE = "sessions.sqlite"

BUSY_S = 5.0
"""Seconds to wait for another writer."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, environment TEXT NOT NULL, handle TEXT NOT NULL, address TEXT NOT NULL,
    header BLOB NOT NULL, over INTEGER NOT NULL, owner TEXT, fence INTEGER NOT NULL, steps INTEGER NOT NULL,
    updated REAL NOT NULL, wanted INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_handle ON sessions (handle);
CREATE INDEX IF NOT EXISTS by_owner ON sessions (owner);
CREATE INDEX IF NOT EXISTS by_end ON sessions (over) WHERE over;
CREATE INDEX IF NOT EXISTS by_time ON sessions (updated);
CREATE TABLE IF NOT EXISTS entries (
    session TEXT NOT NULL, number INTEGER NOT NULL, body BLOB, request_id TEXT, digest BLOB, reply TEXT,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""


_ADD_BYTES = "ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0"


class SqliteStore(SqlStore):
    """A store in a folder.

    The database is written ahead (WAL), so that a killed process loses nothing; a machine without power may lose the
    last moments.

    Args:
        place: the folder.
        make: False: it must exist.
        clock: returns the time in seconds since the epoch.
    """

    def __init__(self, place: str, *, make: bool = True, clock: Callable[[], float] = time.time) -> None:
        folder = Path(place)
        if not make and not (folder / FILE).exists():
            raise ConfigurationError(f"{place}: there is no store of durable sessions")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = sqlite3.connect(
                folder / FILE, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            (folder / FILE).chmod(0o600)
            self._database.create_function("now_s", 0, clock)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
            self._database.execute("BEGIN IMMEDIATE")  # two servers may start at once
            if "bytes" not in [column for _, column, *_ in self._database.execute("PRAGMA table_info(sessions)")]:
                self._database.execute(_ADD_BYTES)  # it was made by an earlier version
                self._database.execute(f"UPDATE sessions SET bytes = ({SIZE})")
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"--durable {place}: {error}") from error
        super().__init__()

    @contextmanager
    def _reading(self) -> Iterator[Execute]:
        try:
            yield self._database.execute
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    @contextmanager
    def _changing(self) -> Iterator[Execute]:
        with self._reading() as execute:
            execute("BEGIN IMMEDIATE")
            try:
                yield execute
                execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    execute("ROLLBACK")
                raise

    def _disconnect(self) -> None:
        self._database.close()
