"""Define `FilesWorld`, a folder with its content. Links are never followed."""

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
"""Maximum bytes of a text file whose text is captured. Other files are captured as their hash."""


class FilesWorld:
    """A folder that belongs to the environment.

    Captured as ``{path: {"text": ...}}``, with paths relative to the folder and "/" between their parts. Long files and
    files that are not UTF-8 text are ``{"sha256": ..., "size": bytes}``, links are ``{"link": target}``, and empty
    folders are ``{"folder": true}``.

    Args:
        folder: must exist as long as the world is used; its content belongs to the world.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def capture(self) -> Tree:
        """Return the content of the folder."""
        return {path: _look(self.folder / path, mode) for path, mode in self._walk()}

    def save(self) -> bytes:
        """Return files, links and folders with their permissions."""
        return pickle.dumps([(path, mode, _content(self.folder / path, mode)) for path, mode in self._walk(True)])

    def load(self, saved: bytes) -> None:
        """Empty the folder and restore the saved content."""
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        entries = pickle.loads(saved)
        for path, mode, content in entries:
            _put(self.folder / path, mode, content)
        for path, mode, _ in reversed(entries):  # last, because a read-only folder could not be filled
            if not stat.S_ISLNK(mode):
                os.chmod(self.folder / path, stat.S_IMODE(mode))

    def held(self) -> tuple[object, ...]:
        """Return nothing: a path is only a name."""
        return ()

    def _walk(self, folders: bool = False) -> Iterator[tuple[str, int]]:
        """Yield path and mode of each entry.

        A folder comes before its content. It is omitted if it is not empty, unless ``folders`` is set.
        """
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
        path.touch()  # a pipe or a socket cannot be copied
