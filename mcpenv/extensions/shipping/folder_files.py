"""List the files of an environment's folder to ship, without files that development tools leave there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

NOT_SHIPPED = frozenset({"__pycache__", "node_modules", "venv", "env", "build", "dist", "site-packages"})
"""Folders that are never part of an environment. Hidden folders are excluded too."""

MAX_FILES = 20_000


def shipped_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, hidden files among them, at most `MAX_FILES`. Links are not followed."""
    number = 0
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in NOT_SHIPPED and not name.startswith(".") and not name.endswith(".egg-info")
        )
        for name in sorted(files):
            number += 1
            if number > MAX_FILES:
                return
            yield Path(here) / name
