"""The files as verifiers see them: JSON, CSV and archives by their content."""

from __future__ import annotations

import csv
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from mcpenv.extensions.sandbox_world import Sandbox
from mcpenv.extensions.sandbox_world.sandbox import Entry, captured
from mcpenv.worlds.world import Tree

from .repository import in_repository, repositories

MAX_ARCHIVE = 4 << 20
"""Maximum bytes of an archive that is captured by its content."""


USUAL = "644"
"""The permissions of files that a sandbox leaves out. Here they are stated, so that a change of them has two values."""

SET_TIMES = "find . -type l -o -exec touch -d 2027-01-01T12:00:00Z {} +"
"""Sets the times of files and folders. bashkit cannot set those of links."""


class FilesView:
    """The files of a sandbox as a world.

    Captured as the sandbox captures them, but with the permissions of each file, and what has more than one spelling by
    its content: JSON is ``{"json": [value]}``, CSV ``{"rows": [...]}``, a tar archive ``{"members": [[name, text],
    ...]}``, a ZIP archive too, and texts have no line ends at their end. What does not parse is captured as text or
    bytes.

    Args:
        sandbox: the files and the shell.
        git: True to capture git repositories as `GitWorld` does, instead of their files.
    """

    def __init__(self, sandbox: Sandbox, *, git: bool) -> None:
        self.sandbox = sandbox
        self._git = git

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files, whose times are always the same."""
        self.sandbox.fill(entries)
        self.sandbox.run(SET_TIMES)

    def capture(self) -> Tree:
        """Return the files for verifiers."""
        entries = self.sandbox.entries()
        if not self._git:
            return view(entries)
        return view([each for each in entries if not in_repository(each)]) | repositories(entries)

    def save(self) -> bytes:
        """Return the files, links and folders with their permissions."""
        return self.sandbox.save()

    def load(self, saved: bytes) -> None:
        """Start anew with saved files."""
        self.sandbox.load(saved)
        self.sandbox.run(SET_TIMES)

    def held(self) -> tuple[object, ...]:
        """Return the sandbox."""
        return (self.sandbox,)


def view(entries: Sequence[Entry]) -> Tree:
    """Return files, links and folders for verifiers."""
    tree = captured(entries)
    for entry in entries:
        seen = tree.get(entry.path)
        if seen is None or not isinstance(entry.content, bytes):
            continue
        seen.setdefault("mode", USUAL)
        if "text" in seen:
            text = seen.pop("text")
            seen.update(_parsed(entry.path, text) or {"text": text.rstrip("\n")})
        read = _READERS.get(entry.path[-4:])
        if read is not None and (members := read(entry.content)) is not None:
            tree[entry.path] = {"members": members, "mode": seen["mode"]}
    return tree


def _parsed(path: str, text: str) -> Tree | None:
    # In a list, because a list that differs is one change.
    if path.endswith(".json"):
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return None
        return {"json": [value]}
    if path.endswith(".csv"):
        try:
            return {"rows": [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]}
        except csv.Error:
            return None
    return None


def _of_tar(content: bytes) -> list[list[Any]] | None:
    """Return the files of an archive, sorted by name; None if it is none, or too large."""
    if len(content) > MAX_ARCHIVE:
        return None
    found: list[list[Any]] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                if member.isfile() and (file := tar.extractfile(member)) is not None:
                    found.append([member.name.removeprefix("./"), file.read().decode(errors="replace")])
                elif not member.isdir():
                    found.append([member.name.removeprefix("./"), {"link": member.linkname}])
    except (tarfile.TarError, EOFError, ValueError):
        return None
    return sorted(found, key=lambda each: (each[0], str(each[1])))


def _of_zip(content: bytes) -> list[list[Any]] | None:
    found: list[list[Any]] = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len(content) + sum(member.file_size for member in members) > MAX_ARCHIVE:
                return None
            for member in members:
                if not member.is_dir():
                    found.append([member.filename, archive.read(member).decode(errors="replace")])
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, OSError):
        return None
    return sorted(found)


_READERS = {".tar": _of_tar, ".zip": _of_zip}
