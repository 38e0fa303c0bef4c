"""The store in a folder: one SQLite database, which servers of one machine share, or of several by NFS."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpenv.errors import ConfigurationError

from .sql_store import SIZE, Execute, SqlStore
from .store import StoreError

FILE = "sessions.sqlite"

LOCAL = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""File systems of one machine. On others, such as NFS, SQLite cannot write ahead: its journal is one to roll back."""

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
    last moments. On a file system of several machines (see `LOCAL`) its journal is one to roll back, which needs locks
    of files that hold between them.

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
            is_new, is_local = not (folder / FILE).exists(), file_system_of(folder) in (*LOCAL, None)
            self._database = sqlite3.connect(
                folder / FILE, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            (folder / FILE).chmod(0o600)
            self._database.create_function("now_s", 0, clock)
            change = f" = {'WAL' if is_local else 'DELETE'}" if is_new else ""
            (mode,) = self._database.execute(f"PRAGMA journal_mode{change}").fetchone()
            if mode == "wal" and not is_local:
                raise ConfigurationError(
                    f"{place}: this store was begun on a disk of one machine; begin a new one here"
                )
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
            self._database.execute("BEGIN IMMEDIATE")  # two servers may start at once
            if "bytes" not in [column for _, column, *_ in self._database.execute("PRAGMA table_info(sessions)")]:
                self._database.execute(_ADD_BYTES)  # it was made by an earlier version
                self._database.execute(f"UPDATE sessions SET bytes = ({SIZE})")
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            why = "it is no folder" if isinstance(error, FileExistsError | NotADirectoryError) else error
            raise ConfigurationError(f"--durable {place}: no store can be begun or opened there: {why}") from error
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


def file_system_of(folder: Path) -> str | None:
    """Return the type of the file system of a folder, such as ``ext4`` or ``nfs4``; None where Linux does not say."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, found = folder.resolve(), dict[Path, str]()
    for line in lines:
        mount, _, device = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
        found[Path(point)] = device.split()[0]  # of several at one point, the last is seen
    return next((found[each] for each in (place, *place.parents) if each in found), None)
