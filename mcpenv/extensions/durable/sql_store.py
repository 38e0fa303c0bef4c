"""What the stores in SQL databases have in common: the statements, one after the other in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from .store import RECORDED, SNAPSHOT, Claimant, Entry, Fenced, KeptSession, OtherEnvironment, Owned, StoreError, Totals
from .threads import answer_of

T = TypeVar("T")

Execute = Callable[..., Any]
"""Runs a statement with its parameters, and returns a cursor."""

MAX_REPLIES = 256
"""The entries of a session whose replies are kept."""

ANSWER_S = 10.0
"""Seconds after which a database that does not answer counts as gone."""

_COLUMNS = "id, digest, environment, handle, address, header, over, owner, fence, steps, updated"
_ALIVE = "EXISTS (SELECT 1 FROM owners WHERE owners.id = sessions.owner AND until > now_s())"


_BYTES = "COALESCE(LENGTH(body), 0) + COALESCE(LENGTH(reply), 0)"
SIZE = f"SELECT COALESCE(SUM({_BYTES}), 0) FROM entries WHERE session = sessions.id"
"""A query for the bytes of a session."""


class SqlStore:
    """A store in an SQL database.

    Its thread makes one change at a time, each in a transaction. The statements have ``?`` for parameters, and
    ``now_s()`` for the time of the database's clock in seconds since the epoch.
    """

    LOCK = ""
    """What a SELECT has at its end that locks rows, where a transaction does not lock the database."""

    def __init__(self) -> None:
        self._owners: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "mcpenv-durable")

    def _changing(self) -> AbstractContextManager[Execute]:
        """Make one change, whole or not at all. Raise StoreError if the database fails."""
        raise NotImplementedError

    def _reading(self) -> AbstractContextManager[Execute]:
        """Read. Raise StoreError if the database fails."""
        raise NotImplementedError

    def _disconnect(self) -> None:
        """Release the connection, in the thread."""
        raise NotImplementedError

    def _abort(self) -> None:
        """Make the statement that runs in the thread fail, if that can be done."""

    async def beat(self, owner: str, lease_s: float) -> Sequence[str]:
        """Renew a lease."""

        def run() -> list[str]:
            self._owners.add(owner)
            with self._changing() as change:
                change(
                    "INSERT INTO owners VALUES (?, now_s() + ?) ON CONFLICT (id) DO UPDATE SET until = excluded.until",
                    (owner, lease_s),
                )
                change("DELETE FROM owners WHERE until < now_s() - ?", (10 * lease_s,))
                wanted = change("SELECT id FROM sessions WHERE owner = ? AND wanted", (owner,)).fetchall()
            return [row[0] for row in wanted]

        return await self._run(run)

    async def begin(self, kept: KeptSession, entries: Sequence[Entry], *, new: bool) -> None:
        """Write an episode from its beginning."""

        def run() -> None:
            with self._changing() as change:
                if new:  # or written by a try whose answer was lost
                    changed = change(
                        f"INSERT INTO sessions ({_COLUMNS}, wanted) VALUES ({', '.join('?' * 10)}, now_s(), FALSE) "
                        "ON CONFLICT (id) DO UPDATE SET updated = excluded.updated "
                        "WHERE sessions.fence = excluded.fence AND sessions.owner = excluded.owner",
                        (kept.id, kept.digest, kept.environment, kept.handle, kept.address, kept.header, kept.over,
                         kept.owner, kept.fence, kept.steps),
                    )  # fmt: skip
                else:
                    changed = change(
                        "UPDATE sessions SET environment = ?, handle = ?, address = ?, header = ?, over = ?, "
                        "steps = ?, updated = now_s() WHERE id = ? AND fence = ?",
                        (kept.environment, kept.handle, kept.address, kept.header, kept.over, kept.steps, kept.id,
                         kept.fence),
                    )  # fmt: skip
                _refuse_fenced(changed)
                _make_room(change, kept.id, entries)
                _write(change, kept.id, entries)
                change(f"UPDATE sessions SET bytes = ({SIZE}) WHERE id = ?", (kept.id,))

        await self._run(run)

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        """Write steps."""

        def run() -> None:
            with self._changing() as change:
                steps = max((entry.number for entry in entries if entry.is_step), default=0)
                more = sum(entry.size for entry in entries)
                replaced, numbers = _replaced(entries)
                changed = change(
                    "UPDATE sessions SET steps = CASE WHEN steps < ? THEN ? ELSE steps END, updated = now_s(), "
                    f"header = COALESCE(?, header), over = (over OR ?), bytes = bytes + ? - ({replaced}) "
                    "WHERE id = ? AND fence = ?",
                    (steps, steps, header, header is not None, more, *numbers, session_id, session_id, fence),
                )
                _refuse_fenced(changed)
                _write(change, session_id, entries)

        await self._run(run)

    async def claim(self, session_id: str, claimant: Claimant, digest: str | None) -> KeptSession | None:
        """Become the owner."""

        def run() -> KeptSession | None:
            with self._changing() as change:
                asked = f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions WHERE id = ?{self.LOCK}"
                row = change(asked, (session_id,)).fetchone()
                if row is None:
                    return None
                kept = _kept(row)
                if digest is not None and digest != kept.digest:
                    raise PermissionError
                if kept.environment != claimant.environment:
                    raise OtherEnvironment(kept)
                if kept.alive and kept.owner != claimant.owner:
                    change("UPDATE sessions SET wanted = TRUE WHERE id = ?", (session_id,))
                else:
                    change(
                        "UPDATE sessions SET owner = ?, address = ?, fence = fence + 1, wanted = FALSE WHERE id = ?",
                        (claimant.owner, claimant.address, session_id),
                    )
                    return replace(kept, owner=claimant.owner, address=claimant.address, fence=kept.fence + 1)
            raise Owned

        return await self._run(run)

    async def entries(self, session_id: str) -> Sequence[Entry]:
        """Return the entries."""

        def run() -> list[Entry]:
            with self._reading() as read:
                rows = read(
                    "SELECT number, body, request_id, digest, reply FROM entries WHERE session = ? ORDER BY number",
                    (session_id,),
                ).fetchall()
            return [Entry(*row) for row in rows]

        return await self._run(run)

    async def release(self, session_id: str, fence: int) -> None:
        """Put a session away."""

        def run() -> None:
            with self._changing() as change:
                change(
                    "UPDATE sessions SET owner = NULL, wanted = FALSE WHERE id = ? AND fence = ?", (session_id, fence)
                )

        await self._run(run)

    async def discard(self, session_id: str, fence: int | None) -> bool:
        """Delete a session."""

        def run() -> bool:
            with self._changing() as change:
                asked = "DELETE FROM sessions WHERE id = ? AND fence = COALESCE(?, fence)"
                found = change(asked, (session_id, fence)).rowcount
                if found:
                    change("DELETE FROM entries WHERE session = ?", (session_id,))
            return bool(found)

        return await self._run(run)

    async def of_handle(self, handle: str) -> KeptSession | None:
        """Return a handle's session."""

        def run() -> KeptSession | None:
            with self._reading() as read:
                row = read(f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions WHERE handle = ?", (handle,)).fetchone()
            return None if row is None else _kept(row)

        return await self._run(run)

    async def sessions(self) -> Sequence[KeptSession]:
        """Return all sessions."""

        def run() -> list[KeptSession]:
            with self._reading() as read:
                rows = read(f"SELECT {_COLUMNS}, {_ALIVE} FROM sessions ORDER BY updated", ()).fetchall()
            return [_kept(row) for row in rows]

        return await self._run(run)

    async def totals(self) -> Totals:
        """Return the sums."""

        def run() -> Totals:
            with self._reading() as read:
                sessions, size = read("SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM sessions", ()).fetchone()
            return Totals(sessions, int(size))

        return await self._run(run)

    async def unrecorded(self, environment: str, before: float) -> Sequence[str]:
        """Return what no record has."""

        def run() -> list[str]:
            with self._reading() as read:
                rows = read(
                    f"SELECT id FROM sessions WHERE (over OR updated < ?) AND environment = ? AND NOT {_ALIVE} "
                    "AND NOT EXISTS (SELECT 1 FROM entries WHERE session = sessions.id AND number = ?)",
                    (before, environment, RECORDED),
                ).fetchall()
            return [row[0] for row in rows]

        return await self._run(run)

    async def sweep(self, before: float) -> Sequence[str]:
        """Delete what nobody continues."""

        def run() -> list[str]:
            with self._changing() as change:
                asked = f"SELECT id FROM sessions WHERE updated < ? AND NOT {_ALIVE}{self.LOCK}"
                ids = change(asked, (before,)).fetchall()
                for row in ids:
                    change("DELETE FROM sessions WHERE id = ?", tuple(row))
                    change("DELETE FROM entries WHERE session = ?", tuple(row))
            return [row[0] for row in ids]

        return await self._run(run)

    async def close(self) -> None:
        """End the leases of this process, and release the database."""

        def run() -> None:
            try:
                if self._owners:
                    with self._changing() as change:
                        for owner in self._owners:
                            change("DELETE FROM owners WHERE id = ?", (owner,))
            finally:
                self._disconnect()

        try:
            await self._run(run)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await answer_of(self._thread, work, ANSWER_S, self._abort)
        except TimeoutError:
            raise StoreError(f"the database has not answered for {ANSWER_S:g} s") from None


def _make_room(change: Execute, session_id: str, entries: Sequence[Entry]) -> None:
    """Delete the last episode. Its replies, which may still be on their way, move before the new ones."""
    asked = "SELECT request_id FROM entries WHERE session = ? AND number = 0"
    row = change(asked, (session_id,)).fetchone()
    if row is not None and row[0] is not None and row[0] in [entry.request_id for entry in entries[:1]]:
        # This is the same episode, written by a try whose answer was lost: the replies have moved.
        change("DELETE FROM entries WHERE session = ? AND number >= 0", (session_id,))
        return
    change("DELETE FROM entries WHERE session = ? AND (reply IS NULL OR number < 0)", (session_id,))
    last = change("SELECT COALESCE(MAX(number), 0) FROM entries WHERE session = ?", (session_id,)).fetchone()[0]
    change(
        "UPDATE entries SET number = number - ? - 1, body = NULL WHERE session = ? AND number >= 0", (last, session_id)
    )
    change("DELETE FROM entries WHERE session = ? AND number < ?", (session_id, -MAX_REPLIES))


def _replaced(entries: Sequence[Entry]) -> tuple[str, list[int]]:
    """Return a query for the bytes that a write will replace, and its numbers. Its last parameter is the session."""
    written = [entry.number for entry in entries]
    dropped = [number - MAX_REPLIES for number in written if MAX_REPLIES < number < SNAPSHOT]
    ours, all_of_them = (", ".join(["NULL", *"?" * len(numbers)]) for numbers in (written, [*written, *dropped]))
    query = (
        f"SELECT COALESCE(SUM(CASE WHEN number IN ({ours}) THEN {_BYTES} ELSE COALESCE(LENGTH(reply), 0) END), 0) "
        f"FROM entries WHERE number IN ({all_of_them}) AND session = ?"
    )
    return query, [*written, *written, *dropped]


def _write(change: Execute, session_id: str, entries: Sequence[Entry]) -> None:
    for entry in entries:
        change(
            "INSERT INTO entries (session, number, body, request_id, digest, reply) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (session, number) DO UPDATE SET body = excluded.body, request_id = excluded.request_id, "
            "digest = excluded.digest, reply = excluded.reply",
            (session_id, entry.number, entry.body, entry.request_id, entry.digest, entry.reply),
        )
        if MAX_REPLIES < entry.number < SNAPSHOT:
            asked = "UPDATE entries SET request_id = NULL, digest = NULL, reply = NULL"
            change(f"{asked} WHERE session = ? AND number = ?", (session_id, entry.number - MAX_REPLIES))


def _kept(row: Sequence[Any]) -> KeptSession:
    id, digest, environment, handle, address, header, over, owner, fence, steps, updated, alive = row
    return KeptSession(
        id, digest, environment, handle, address, header, bool(over), owner, fence, steps, updated, bool(alive)
    )


def _refuse_fenced(changed: Any) -> None:
    if not changed.rowcount:
        raise Fenced
