"""Store the snapshots of a session, and of the sessions forked from it, by id."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from mcpenv_client.errors import CapacityReached, InvalidMessage

from .snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Kept:
    snapshot: Snapshot
    owner: SnapshotStore


class SnapshotStore:
    """The snapshots that one session made. Snapshots of all sessions related to it by forks can be found.

    Args:
        max_count: maximum number of snapshots.
        max_bytes: maximum size of all snapshots together.
        family: the store of the session that this one was forked from.

    Attributes:
        count: the number of snapshots.
        bytes: the size of all snapshots together.
    """

    __slots__ = ("_closed", "_family", "_max_bytes", "_max_count", "bytes", "count")

    def __init__(self, max_count: int, max_bytes: int, family: SnapshotStore | None = None) -> None:
        self._family: dict[str, _Kept] = {} if family is None else family._family
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._closed = False
        self.count = 0
        self.bytes = 0

    def forked(self) -> SnapshotStore:
        """Return the store for a session that is forked from this store's session."""
        return SnapshotStore(self._max_count, self._max_bytes, self)

    def refuse_full(self, more_bytes: int = 0) -> None:
        """Raise if there is no room for one more snapshot.

        Raises:
            CapacityReached: if the maximum number or the maximum size is reached.
        """
        if self.count >= self._max_count:
            raise CapacityReached(
                f"this session holds {self.count} snapshots, as many as there may be (max_snapshots): drop one first",
                max_snapshots=self._max_count,
            )
        if self.bytes + more_bytes > self._max_bytes:
            raise CapacityReached(
                f"this session's snapshots would take {self.bytes + more_bytes} bytes, and may take {self._max_bytes} "
                "(max_snapshot_bytes): drop some first",
                max_snapshot_bytes=self._max_bytes,
            )

    def add(self, snapshot: Snapshot) -> str:
        """Add a snapshot and return its id, which cannot be guessed.

        Raises:
            CapacityReached: if there is no room for it.
        """
        self.refuse_full(snapshot.bytes)
        snapshot_id = secrets.token_urlsafe(18)
        if not self._closed:  # no client can ask for it if its session has ended meanwhile
            self._family[snapshot_id] = _Kept(snapshot, self)
            self.count += 1
            self.bytes += snapshot.bytes
        return snapshot_id

    def get(self, snapshot_id: str) -> Snapshot:
        """Return the snapshot with that id.

        Raises:
            InvalidMessage: if there is no such snapshot.
        """
        kept = self._family.get(snapshot_id)
        if kept is None:
            raise InvalidMessage(
                "no such snapshot: it was dropped, its session has ended, or it never was",
                errors=[{"loc": ["data", "snapshot_id"], "msg": "no such snapshot", "type": "value_error"}],
            )
        return kept.snapshot

    def drop(self, snapshot_id: str) -> bool:
        """Delete a snapshot, and return True if it existed."""
        kept = self._family.pop(snapshot_id, None)
        if kept is None:
            return False
        kept.owner.count -= 1
        kept.owner.bytes -= kept.snapshot.bytes
        return True

    def close(self) -> None:
        """Delete the snapshots of this session. Snapshots of related sessions stay."""
        self._closed = True
        for snapshot_id in [each for each, kept in self._family.items() if kept.owner is self]:
            self.drop(snapshot_id)
