"""FilesWorld: a folder and all that is in it. Links are never followed."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .world import Tree

MAX_TEXT = 256 * 1024
"""Bytes of a text file whose text is captured; of a larger one, and of any other file, the hash."""


class FilesWorld:
    """A folder of the environment's own.

    Captured as ``{path: {"text": ...}}`` with paths relative to the folder, "/" between their parts; files that are no
    UTF-8 text, or long, as ``{"sha256": ..., "size": bytes}``, links as ``{"link": target}``, empty folders as
    ``{"folder": true}``.

    Args:
        folder: exists as long as the world is used; what is in it belongs to the world.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def capture(self) -> Tree:
        """What is in the folder."""
        return {path: _look(self.folder / path, mode) for path, mode in self._walk()}

    def save(self) -> bytes:
        """Files, links and folders with their permissions."""
        return pickle.dumps([(path, mode, _content(self.folder / path, mode)) for path, mode in self._walk(True)])

    def load(self, saved: bytes) -> None:
        """Empty the folder and fill it again."""
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        entries = pickle.loads(saved)
        for path, mode, content in entries:
            _put(self.folder / path, mode, content)
        for path, mode, _ in reversed(entries):  # a folder that cannot be written has its content by now
            if not stat.S_ISLNK(mode):
                os.chmod(self.folder / path, stat.S_IMODE(mode))

    def held(self) -> tuple[object, ...]:
        """Nothing: a path is only a name."""
        return ()

    def _walk(self, folders: bool = False) -> Iterator[tuple[str, int]]:
        """Path and mode of each entry; a folder before what is in it, if asked for or empty."""
        pending = [""]
        while pending:
            inside = pending.pop()
            below: list[str] = []
            for name in sorted(os.listdir(self.folder / inside)):
                path = f"{inside}/{name}" if inside else name
                mode = os.lstat(self.folder / path).st_mode
                if stat.S_ISDIR(mode):
                    below.append(path)
                if folders or not stat.S_ISDIR(mode) or not os.listdir(self.folder / path):
                    yield path, mode
            pending.extend(reversed(below))


def _look(path: Path, mode: int) -> dict[str, Any]:
    if stat.S_ISDIR(mode):
        return {"folder": True}
    if stat.S_ISLNK(mode):
        return {"link": os.readlink(path)}
    if not stat.S_ISREG(mode):
        return {"special": stat.filemode(mode)[0]}
    size = path.stat().st_size
    if size <= MAX_TEXT:
        content = path.read_bytes()
        try:
            return {"text": content.decode()}
        except UnicodeDecodeError:
            return {"sha256": hashlib.sha256(content).hexdigest(), "size": size}
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": size}


def _content(path: Path, mode: int) -> bytes | str | None:
    if stat.S_ISREG(mode):
        return path.read_bytes()
    return os.readlink(path) if stat.S_ISLNK(mode) else None


def _put(path: Path, mode: int, content: bytes | str | None) -> None:
    if stat.S_ISDIR(mode):
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.touch()  # what was a pipe or a socket, no copy of it is
