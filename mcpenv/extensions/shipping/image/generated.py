"""Texts that commands write into an author's folder, and do not overwrite once the author has changed them.

The last line of each has the checksum of the lines above it.
"""

from __future__ import annotations

import enum
import hashlib
import re
from pathlib import Path

_MARK = re.compile(r"# Checksum of mcpenv build: ([0-9a-f]{16})\n?\Z")


class Written(enum.Enum):
    """The result of writing a file."""

    NEW = "written"
    SAME = "unchanged"
    UPDATED = "updated"
    KEPT = "kept"


def checked(text: str) -> str:
    """Return a text with the checksum of its lines appended as the last line."""
    return f"{text}# Checksum of mcpenv build: {_checksum(text)}\n"


def is_changed(text: str) -> bool:
    """Return True if a text is not the output of `checked`."""
    mark = _MARK.search(text)
    return mark is None or mark[1] != _checksum(text[: mark.start()])


def write_text(file: Path, text: str, *, force: bool) -> Written:
    """Write a file, unless its author has changed it.

    Args:
        file: the file.
        text: its text, with a checksum.
        force: True to overwrite it in any case.
    """
    if not file.exists():
        result = Written.NEW
    else:
        there = file.read_text(encoding="utf-8")
        if there == text:
            return Written.SAME
        if is_changed(there) and not force:
            return Written.KEPT
        result = Written.UPDATED
    file.write_text(text, encoding="utf-8")
    return result


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
