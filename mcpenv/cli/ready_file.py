"""The file of ``--ready-file``: the addresses of a server, for the program that started it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpenv.errors import ConfigurationError

_written: dict[Path, tuple[int, int]] = {}
"""The files that this process wrote or adopted, each with its inode and the time of its last change."""


@contextmanager
def ready_file_at(file: Path | None) -> Iterator[None]:
    """Remove the file that an earlier server has left, and at the end the one that this process wrote.

    A file that another server has written since stays.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if file is None:
        yield
        return
    if not os.access(file.parent, os.W_OK):
        raise ConfigurationError(f"--ready-file {file}: the folder does not exist, or cannot be written to")
    if file.is_dir():
        raise ConfigurationError(f"--ready-file {file}: it is a folder; name a file")
    file.unlink(missing_ok=True)
    try:
        yield
    finally:
        if file.exists() and _written.pop(file, None) == _identity(file):
            file.unlink(missing_ok=True)


def write_ready_file(file: Path, **addresses: str) -> None:
    """Write the file atomically, so that no reader finds an incomplete one.

    Args:
        file: the file.
        addresses: its content: ``url``, the base URL of the control plane, and others by name.
    """
    written = file.with_name(f".{file.name}.{os.getpid()}")
    written.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
    _written[file] = _identity(written)
    written.replace(file)


def adopt_ready_file(file: Path) -> None:
    """Let this process remove a file at its end that a process of its own has written."""
    _written[file] = _identity(file)


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns
