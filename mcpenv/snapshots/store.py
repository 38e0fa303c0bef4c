"""The store of snapshots: those of one session, and of the sessions that were forked from it, by id."""

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
    """The snapshots that one session made. Those of its whole family can be found: whoever forked, and was forked.

    Args:
        max_count: how many it holds.
        max_bytes: how large they may be together.
        family: the store of the session that this one was forked from.

    Attributes:
        count: how many it holds.
        bytes: how large they are together.
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
        """The store of a session that is forked from this one's."""
        return SnapshotStore(self._max_count, self._max_bytes, self)

    def refuse_full(self, more_bytes: int = 0) -> None:
        """Refuse one more.

        Raises:
            CapacityReached: there are as many as there may be, or they would be too large together.
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
        """Hold one more; gives its id, which nobody else can guess.

        Raises:
            CapacityReached: there is no room for it.
        """
        self.refuse_full(snapshot.bytes)
        snapshot_id = secrets.token_urlsafe(18)
        if not self._closed:  # a session that ends while it is made has nobody to ask for it
            self._family[snapshot_id] = _Kept(snapshot, self)
            self.count += 1
            self.bytes += snapshot.bytes
        return snapshot_id

    def get(self, snapshot_id: str) -> Snapshot:
        """The snapshot of that id.

        Raises:
            InvalidMessage: there is none here (any more).
        """
        kept = self._family.get(snapshot_id)
        if kept is None:
            raise InvalidMessage(
                "no such snapshot: it was dropped, its session has ended, or it never was",
                errors=[{"loc": ["data", "snapshot_id"], "msg": "no such snapshot", "type": "value_error"}],
            )
        return kept.snapshot

    def drop(self, snapshot_id: str) -> bool:
        """Let go of a snapshot; whether it was there."""
        kept = self._family.pop(snapshot_id, None)
        if kept is None:
            return False
        kept.owner.count -= 1
        kept.owner.bytes -= kept.snapshot.bytes
        return True

    def close(self) -> None:
        """Let go of all that this session made; the others' stay."""
        self._closed = True
        for snapshot_id in [each for each, kept in self._family.items() if kept.owner is self]:
            self.drop(snapshot_id)
