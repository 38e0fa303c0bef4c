"""Validate that tasks can be solved and cannot be cheated, by trying them on the environment.

``mcpenv validate`` on the command line; in Python ``validate(Ledger, Ledger.tasks)``.
"""

from __future__ import annotations

from .play import Play
from .report import Report, TaskReport
from .validate import validate

__all__ = ["Play", "Report", "TaskReport", "validate"]
