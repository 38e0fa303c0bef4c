"""Define `FilesWorld`, a folder with its content. Links are never followed."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .world import Tree

MAX_TEXT = 256 * 1024
"""Maximum bytes of a file that is captured as text. Other files are captured as their hash."""


class FilesWorld:
    """A folder that belongs to the environment.

    Captured as ``{path: {"text": ...}}``, with paths relative to the folder and "/" between their parts. Long files and
    files that are not UTF-8 text are ``{"sha256": ..., "size": bytes}``, links are ``{"link": target}``, and empty
    folders are ``{"folder": true}``.

    Another process may write to the folder meanwhile. A file that it deletes during a capture counts as absent.

    Args:
        folder: must exist as long as the world is used; its content belongs to the world.
        ignore: files and folders that are not captured, as paths relative to the folder: ``(".git",)``. They are saved.
    """

    def __init__(self, folder: str | os.PathLike[str], *, ignore: Iterable[str] = ()) -> None:
        self.folder = Path(folder)
        self._ignore = frozenset(path.strip("/") for path in ignore)

    def capture(self) -> Tree:
        """Return the content of the folder."""
        seen = {path: look(self.folder / path) for path, _ in self._walk(without=self._ignore)}
        return {path: content for path, content in seen.items() if content}

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
        """Return nothing, because a path is only a name."""
        return ()

    def _walk(self, folders: bool = False, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, int]]:
        """Yield path and mode of each entry.

        A folder comes before its content. It is omitted if it is not empty, unless ``folders`` is set.
        """
        pending = [""]
        while pending:
            inside = pending.pop()
            below: list[str] = []
            for name in self._names(inside):
                path = f"{inside}/{name}" if inside else name
                if path in without:
                    continue
                try:
                    mode = os.lstat(self.folder / path).st_mode
                except FileNotFoundError:
                    continue  # deleted since it was listed
                if stat.S_ISDIR(mode):
                    below.append(path)
                if folders or not stat.S_ISDIR(mode) or not self._names(path):
                    yield path, mode
            pending.extend(reversed(below))

    def _names(self, inside: str) -> list[str]:
        """Return the names in a folder, sorted; none if it was deleted since it was listed."""
        try:
            return sorted(os.listdir(self.folder / inside))
        except (FileNotFoundError, NotADirectoryError):
            if not inside:
                raise
            return []


def look(path: Path) -> dict[str, Any]:
    """Return a file, link or folder as it is captured; an empty dictionary if there is none."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return {"folder": True}
        if stat.S_ISLNK(mode):
            return {"link": os.readlink(path)}
        if not stat.S_ISREG(mode):
            return {"special": stat.filemode(mode)[0]}
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= MAX_TEXT:
                return look_at(file.read())
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": size}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def look_at(content: bytes) -> dict[str, Any]:
    """Return the content of a file as it is captured."""
    if len(content) <= MAX_TEXT:
        try:
            return {"text": content.decode()}
        except UnicodeDecodeError:
            pass  # not a text
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


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
