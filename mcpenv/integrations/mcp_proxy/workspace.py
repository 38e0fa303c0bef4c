"""The folder of an episode, made from a template."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .config import WORKSPACE

logger = logging.getLogger("mcpenv.upstream")


class Workspace:
    """A temporary folder that servers work in. `restore` puts the files of the template back.

    Args:
        template: the folder to copy; None for an empty folder.
    """

    def __init__(self, template: Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="mcpenv-workspace-"))
        self._template = template

    def restore(self) -> None:
        """Make the folder equal to the template. The folder itself stays: it may be somebody's working directory."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if self._template is not None:
            shutil.copytree(self._template, self.path, symlinks=True, dirs_exist_ok=True)

    def digest(self) -> str:
        """Return the SHA-256 of the names, kinds and contents of all files, in hexadecimal digits."""
        return digest_of(self.path)

    def remove(self) -> None:
        """Delete the folder. What a process still writes or locks is left, and logged."""
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            logger.warning("workspace %s is not deleted: %s", self.path, error)

    def fill(self, value: Any) -> Any:
        """Return a JSON value with the folder's path in place of ``{workspace}``."""
        if isinstance(value, str):
            return value.replace(WORKSPACE, str(self.path))
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of the names, kinds and contents of all files below a folder, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            digest.update(f"link {name}\0{path.readlink()}\0".encode())
        elif path.is_dir():
            digest.update(f"folder {name}\0".encode())
        else:
            content = path.read_bytes()
            digest.update(f"file {name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


__all__ = ["Workspace", "digest_of"]
