"""What the text of a target of MCP servers names. Nothing of it is loaded here."""

from __future__ import annotations

import shlex
from pathlib import Path

PREFIX = "mcp:"
"""The beginning of a target that is a server's command or URL."""

RECORDED = "cassette:"
"""The beginning of a target that is a record to play, without its servers."""


def names_servers(target: str) -> bool:
    """Return True if a target is ``mcp:...``, ``cassette:...`` or a JSON file."""
    return target.startswith((PREFIX, RECORDED)) or (target.endswith(".json") and Path(target).expanduser().is_file())


def file_of(target: str) -> Path | None:
    """Return the file or folder of a target of servers; None if it is a command or a URL."""
    return None if target.startswith(PREFIX) else Path(target.removeprefix(RECORDED)).expanduser()


def with_absolute_paths(target: str) -> str:
    """Return a target that starts the same server from any working directory.

    Words of its command that name an existing file, or contain a ``/`` and name a folder, are made absolute.
    """
    what = target.removeprefix(PREFIX).strip()
    if what.startswith(("http://", "https://")):
        return target
    return PREFIX + shlex.join(_absolute(word) for word in shlex.split(what))


def _absolute(word: str) -> str:
    path = Path(word).expanduser()
    return str(path.absolute()) if path.is_file() or ("/" in word and path.is_dir()) else word
