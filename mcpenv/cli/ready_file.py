"""The file of ``--ready-file``: the addresses of a server, for the program that started it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcpenv.errors import ConfigurationError


def prepare_ready_file(file: Path) -> None:
    """Remove the file that an earlier server has left.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if not os.access(file.parent, os.W_OK):
        raise ConfigurationError(f"--ready-file {file}: the folder does not exist, or cannot be written to")
    if file.is_dir():
        raise ConfigurationError(f"--ready-file {file}: it is a folder; name a file")
    file.unlink(missing_ok=True)


def write_ready_file(file: Path, **addresses: str) -> None:
    """Write the file atomically, so that no reader finds an incomplete one.

    Args:
        file: the file.
        addresses: its content: ``url``, the base URL of the control plane, and others by name.
    """
    written = file.with_name(f".{file.name}.{os.getpid()}")
    written.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
    written.replace(file)
