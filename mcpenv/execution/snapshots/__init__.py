"""Snapshot episodes after a step, restore them and fork them."""

from __future__ import annotations

from .snapshot import Snapshot

__all__ = ["Snapshot"]
