"""An environment's world in an SQLite database."""

from __future__ import annotations

from .world import SQLiteWorld

__all__ = ["SQLiteWorld"]
