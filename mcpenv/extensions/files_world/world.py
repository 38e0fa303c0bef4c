"""Define `FilesWorld`, a folder with its content. Links are never followed."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mcpenv.errors import WorldUnreadable
from mcpenv.worlds.world import Budget, Tree, free_key

MAX_TEXT = 256 * 1024
"""Maximum bytes of a file that is captured as text. Other files are captured as their hash."""

MAX_BYTES = 1 << 30
"""Maximum bytes of all files that are captured or saved."""

MAX_TREE = 128 << 20
"""Maximum bytes of a captured tree: the texts, and `EACH` for each file."""

EACH = 512
_CHUNK = 1 << 20
_OF_PATH = frozenset({errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP})
"""The errors of a file that come from its permissions or its path, which an agent may choose."""

_OF_FOLDER = _OF_PATH | {errno.ENOENT, errno.ENOTDIR}
"""The errors of a folder that an agent may have deleted, replaced or denied."""

_DENIED = os.strerror(errno.EACCES)


class FilesWorld:
    """A folder that belongs to the environment.

    Captured as ``{path: {"text": ...}}``, with paths relative to the folder and "/" between their parts. Long files and
    files that are not UTF-8 text are ``{"sha256": ..., "size": bytes}``, links are ``{"link": target}``, and empty
    folders are ``{"folder": true}``.

    Another process may write to the folder meanwhile. A file that it deletes during a capture counts as absent. What
    may not be read, or has a path that is too long, is ``{"unreadable": reason}``. Bytes of a name that are not UTF-8
    are U+FFFD.

    Args:
        folder: must exist as long as the world is used; its content belongs to the world.
        ignore: files and folders that are not captured, as paths relative to the folder: ``(".git",)``. They are saved.
        max_bytes: maximum bytes of all files. A sparse file may be larger than the disk.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, ignore: Iterable[str] = (), max_bytes: int = MAX_BYTES
    ) -> None:
        self.folder = Path(folder)
        self._ignore = frozenset(path.strip("/") for path in ignore)
        self._max_bytes = max_bytes

    def capture(self) -> Tree:
        """Return the content of the folder.

        Raises:
            WorldUnreadable: the files, or their texts, are too large, reading them takes too long, or the folder was
                deleted, replaced by something else, or may not be read.
        """
        budget = Budget("the folder", self._max_bytes)
        try:
            os.listdir(self.folder)
        except OSError as error:
            if error.errno not in _OF_FOLDER:
                raise
            raise WorldUnreadable(f"the folder: {error.strerror}") from error
        kept = Budget("the text of the folder", MAX_TREE)
        tree: Tree = {}
        for path, _ in self._walk(without=self._ignore):
            content = look(self.folder / path, budget)
            if content:
                kept.take(EACH + len(content.get("text", "")))
                tree[free_key(_utf8(path), tree)] = content
        return tree

    def save(self) -> bytes:
        """Return files, links and folders with their permissions.

        Raises:
            WorldUnreadable: the files are too large.
        """
        budget = Budget("the folder", self._max_bytes)
        entries = self._walk(True)
        return pickle.dumps([(path, mode, _content(self.folder / path, mode, budget)) for path, mode in entries])

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
        """Return the folder, which is a place."""
        return (self.folder,)

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
                except OSError:
                    mode = 0  # `look` says why
                if stat.S_ISDIR(mode):
                    below.append(path)
                if folders or not stat.S_ISDIR(mode) or not self._names(path):
                    yield path, mode
            pending.extend(reversed(below))

    def _names(self, inside: str) -> list[str]:
        """Return the names in a folder, sorted; none if it was deleted since it was listed."""
        try:
            return sorted(os.listdir(self.folder / inside))
        except OSError:  # denied, or the path is too long: `look` says so
            if not inside:
                raise
            return []


def look(path: Path, budget: Budget | None = None) -> dict[str, Any]:
    """Return a file, link or folder as it is captured; an empty dictionary if there is none.

    Raises:
        WorldUnreadable: the budget does not suffice.
    """
    budget = Budget("the folder", MAX_BYTES) if budget is None else budget
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return {"folder": True} if os.access(path, os.R_OK | os.X_OK) else {"unreadable": _DENIED}
        if stat.S_ISLNK(mode):
            return {"link": _utf8(os.readlink(path))}
        if not stat.S_ISREG(mode):
            return {"special": stat.filemode(mode)[0]}
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            budget.take(size)
            if size <= MAX_TEXT:
                return look_at(file.read(MAX_TEXT + 1))
            digest, read = hashlib.sha256(), 0
            while chunk := file.read(_CHUNK):
                read += len(chunk)
                budget.take(min(len(chunk), max(read - size, 0)))  # it may have grown
                digest.update(chunk)
            return {"sha256": digest.hexdigest(), "size": read}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if error.errno not in _OF_PATH:
            raise
        return {"unreadable": os.strerror(error.errno or 0)}


def look_at(content: bytes) -> dict[str, Any]:
    """Return the content of a file as it is captured."""
    if len(content) <= MAX_TEXT:
        try:
            return {"text": content.decode()}
        except UnicodeDecodeError:
            pass  # not a text
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _utf8(name: str) -> str:
    """Return a name of the file system as UTF-8 text."""
    return os.fsencode(name).decode(errors="replace")


def _content(path: Path, mode: int, budget: Budget) -> bytes | str | None:
    if stat.S_ISREG(mode):
        budget.take(os.lstat(path).st_size)
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
