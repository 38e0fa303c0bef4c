"""Verifying: what the state at the end of an episode is worth, whatever the agent says of it."""

from __future__ import annotations

from .evidence import Evidence
from .run import check, run

__all__ = ["Evidence", "check", "run"]
