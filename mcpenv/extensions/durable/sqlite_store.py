"""The store in a folder: one SQLite database, which the servers of one machine share."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mcpenv.errors import ConfigurationError

from .store import SNAPSHOT, Entry, Fenced, KeptSession, Owned, StoreError

T = TypeVar("T")

FILE = "sessions.sqlite"

MAX_REPLIES = 256
"""The entries of a session whose replies are kept."""

BUSY_S = 5.0
"""Seconds to wait for another writer."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS owners (id TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, environment TEXT NOT NULL, handle TEXT NOT NULL, base_url TEXT NOT NULL,
    header BLOB NOT NULL, over INTEGER NOT NULL, owner TEXT, fence INTEGER NOT NULL, steps INTEGER NOT NULL,
    updated REAL NOT NULL, wanted INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_handle ON sessions (handle);
CREATE INDEX IF NOT EXISTS by_owner ON sessions (owner);
CREATE TABLE IF NOT EXISTS entries (
    session TEXT NOT NULL, number INTEGER NOT NULL, body BLOB, request_id TEXT, digest BLOB, reply TEXT,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""

_COLUMNS = "id, digest, environment, handle, base_url, header, over, owner, fence, steps, updated"
_ALIVE = "EXISTS (SELECT 1 FROM owners WHERE owners.id = sessions.owner AND until > ?)"


class SqliteStore:
    """A store in a folder.

    Its thread makes one change at a time, each in a transaction. The database is written ahead (WAL), so that a killed
    process loses nothing; a machine without power may lose the last moments.
    """

    def __init__(self, place: str, *, make: bool = True) -> None:
        folder = Path(place)
        if not make and not (folder / FILE).exists():
            raise ConfigurationError(f"{place}: there is no store of durable sessions")
        self._owners: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = sqlite3.connect(
                folder / FILE, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            (folder / FILE).chmod(0o600)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"--durable {place}: {error}") from error
        self._thread = ThreadPoolExecutor(1, "mcpenv-durable")

    async def beat(self, owner: str, lease_s: float) -> Sequence[str]:
        """Renew a lease."""

        def run() -> list[str]:
            now = time.time()
            self._owners.add(owner)
            with self._changing() as change:
                change("INSERT OR REPLACE INTO owners VALUES (?, ?)", (owner, now + lease_s))
                change("DELETE FROM owners WHERE until < ?", (now - 10 * lease_s,))
                wanted = change("SELECT id FROM sessions WHERE owner = ? AND wanted", (owner,)).fetchall()
            return [row[0] for row in wanted]

        return await self._run(run)

    async def begin(self, kept: KeptSession, entries: Sequence[Entry], *, new: bool) -> None:
        """Write an episode from its beginning."""

        def run() -> None:
            with self._changing() as change:
                if new:
                    row = (*_row(kept), time.time(), 0)
                    change(f"INSERT INTO sessions ({_COLUMNS}, wanted) VALUES ({', '.join('?' * 12)})", row)
                else:
                    changed = change(
                        "UPDATE sessions SET environment = ?, handle = ?, base_url = ?, header = ?, over = ?, "
                        "steps = ?, updated = ? WHERE id = ? AND fence = ?",
                        (kept.environment, kept.handle, kept.base_url, kept.header, kept.over, kept.steps, time.time(),
                         kept.id, kept.fence),
                    )  # fmt: skip
                    _refuse_fenced(changed)
                # Replies of the last episode may still be on their way to the client: they move before the new ones.
                change("DELETE FROM entries WHERE session = ? AND (reply IS NULL OR number < 0)", (kept.id,))
                last = change("SELECT COALESCE(MAX(number), 0) FROM entries WHERE session = ?", (kept.id,)).fetchone()[
                    0
                ]
                change(
                    "UPDATE entries SET number = number - ? - 1, body = NULL WHERE session = ? AND number >= 0",
                    (last, kept.id),
                )
                change("DELETE FROM entries WHERE session = ? AND number < ?", (kept.id, -MAX_REPLIES))
                self._write(change, kept.id, entries)

        await self._run(run)

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        """Write steps."""

        def run() -> None:
            with self._changing() as change:
                steps = max((entry.number for entry in entries if entry.is_step), default=0)
                changed = change(
                    "UPDATE sessions SET steps = MAX(steps, ?), updated = ?, header = COALESCE(?, header), "
                    "over = over OR ? WHERE id = ? AND fence = ?",
                    (steps, time.time(), header, header is not None, session_id, fence),
                )
                _refuse_fenced(changed)
                self._write(change, session_id, entries)

        await self._run(run)

    async def claim(self, session_id: str, owner: str, digest: str | None) -> KeptSession | None:
        """Become the owner."""

        def run() -> KeptSession | None:
            with self._changing() as change:
                kept = self._one(change, session_id)
                if kept is None:
                    return None
                if digest is not None and digest != kept.digest:
                    raise PermissionError
                if kept.alive and kept.owner != owner:
                    change("UPDATE sessions SET wanted = 1 WHERE id = ?", (session_id,))
                else:
                    change(
                        "UPDATE sessions SET owner = ?, fence = fence + 1, wanted = 0 WHERE id = ?", (owner, session_id)
                    )
                    return replace(kept, owner=owner, fence=kept.fence + 1)
            raise Owned

        return await self._run(run)

    async def entries(self, session_id: str) -> Sequence[Entry]:
        """Return the entries."""

        def run() -> list[Entry]:
            with self._reading():
                rows = self._database.execute(
                    "SELECT number, body, request_id, digest, reply FROM entries WHERE session = ? ORDER BY number",
                    (session_id,),
                ).fetchall()
            return [Entry(*row) for row in rows]

        return await self._run(run)

    async def release(self, session_id: str, fence: int) -> None:
        """Put a session away."""

        def run() -> None:
            with self._changing() as change:
                change("UPDATE sessions SET owner = NULL, wanted = 0 WHERE id = ? AND fence = ?", (session_id, fence))

        await self._run(run)

    async def discard(self, session_id: str, fence: int | None) -> bool:
        """Delete a session."""

        def run() -> bool:
            with self._changing() as change:
                found = change(
                    "DELETE FROM sessions WHERE id = ? AND fence = COALESCE(?, fence)", (session_id, fence)
                ).rowcount
                if found:
                    change("DELETE FROM entries WHERE session = ?", (session_id,))
            return bool(found)

        return await self._run(run)

    async def of_handle(self, handle: str) -> KeptSession | None:
        """Return a handle's session."""

        def run() -> KeptSession | None:
            with self._reading():
                where = "WHERE handle = ?"
                row = self._database.execute(
                    f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions {where}", (time.time(), handle)
                ).fetchone()
            return None if row is None else _kept(row)

        return await self._run(run)

    async def sessions(self) -> Sequence[KeptSession]:
        """Return all sessions."""

        def run() -> list[KeptSession]:
            with self._reading():
                rows = self._database.execute(
                    f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions ORDER BY updated", (time.time(),)
                ).fetchall()
            return [_kept(row) for row in rows]

        return await self._run(run)

    async def sweep(self, before: float) -> int:
        """Delete what nobody continues."""

        def run() -> int:
            with self._changing() as change:
                where = f"WHERE updated < ? AND NOT {_ALIVE}"
                change(f"DELETE FROM entries WHERE session IN (SELECT id FROM sessions {where})", (before, time.time()))
                return change(f"DELETE FROM sessions {where}", (before, time.time())).rowcount

        return await self._run(run)

    async def close(self) -> None:
        """Release the database."""

        def run() -> None:
            with self._changing() as change:
                for owner in self._owners:
                    change("DELETE FROM owners WHERE id = ?", (owner,))
            self._database.close()

        try:
            await self._run(run)
        finally:
            self._thread.shutdown(wait=False)

    # -- inside

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    @contextmanager
    def _changing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Make one change, whole or not at all."""
        with self._reading():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database.execute
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @staticmethod
    def _write(change: Callable[..., sqlite3.Cursor], session_id: str, entries: Sequence[Entry]) -> None:
        for entry in entries:
            change(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)",
                (session_id, entry.number, entry.body, entry.request_id, entry.digest, entry.reply),
            )
            if MAX_REPLIES < entry.number < SNAPSHOT:
                asked = "UPDATE entries SET request_id = NULL, digest = NULL, reply = NULL"
                change(f"{asked} WHERE session = ? AND number = ?", (session_id, entry.number - MAX_REPLIES))

    @staticmethod
    def _one(change: Callable[..., sqlite3.Cursor], session_id: str) -> KeptSession | None:
        row = change(f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions WHERE id = ?", (time.time(), session_id)).fetchone()
        return None if row is None else _kept(row)


def _kept(row: tuple) -> KeptSession:  # type: ignore[type-arg]
    id, digest, environment, handle, base_url, header, over, owner, fence, steps, updated, alive = row
    return KeptSession(
        id, digest, environment, handle, base_url, header, bool(over), owner, fence, steps, updated, bool(alive)
    )


def _row(kept: KeptSession) -> tuple:  # type: ignore[type-arg]
    return (
        kept.id, kept.digest, kept.environment, kept.handle, kept.base_url, kept.header, kept.over, kept.owner,
        kept.fence, kept.steps,
    )  # fmt: skip


def _refuse_fenced(changed: sqlite3.Cursor) -> None:
    if not changed.rowcount:
        raise Fenced
