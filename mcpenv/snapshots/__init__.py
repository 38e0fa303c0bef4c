"""Snapshots: episodes held as they stand after a step, restored and forked."""

from __future__ import annotations

from .snapshot import Snapshot

__all__ = ["Snapshot"]
