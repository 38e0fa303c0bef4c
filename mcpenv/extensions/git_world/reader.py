"""Read a git repository with git, without running programs that the repository's own configuration names.

A repository's configuration may name programs that git starts: a file system monitor, filters, hooks. A writer of the
repository could thus run code on the machine that reads it. Git therefore reads a copy of the references, with a
configuration of ours, and the repository's own objects.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from mcpenv.errors import WorldUnreadable
from mcpenv.worlds.world import left_of_capture

TIMEOUT_S = 120.0
"""Maximum seconds of one git command."""

_CONFIG = """[core]
\trepositoryFormatVersion = {version}
\tbare = {bare}
\tfsmonitor = false
\tuntrackedCache = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tcommitGraph = false
\tmultiPackIndex = false
\tquotePath = false
"""

_ENVIRONMENT = {
    "LC_ALL": "C",
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "none",
}


class GitFailed(WorldUnreadable):
    """Raised if a repository cannot be read."""


class GitReader:
    """A repository to read from, as it is when the reader is entered.

    Args:
        folder: its work tree, or the repository itself if it is bare.

    Attributes:
        bare: True if it has no work tree.

    Raises:
        GitFailed: it cannot be read, or git is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / ".git"
        self.bare = not os.path.lexists(self.directory)
        if self.bare:
            self.directory = folder
        elif not stat.S_ISDIR(os.lstat(self.directory).st_mode):
            raise GitFailed(f"{self.directory} is a link or a file; only a repository of its own can be read")

    @staticmethod
    def finds(folder: Path) -> bool:
        """Return True if there is a repository in a folder."""
        return os.path.lexists(folder / ".git") or all((folder / name).exists() for name in ("HEAD", "objects", "refs"))

    def __enter__(self) -> GitReader:
        self._copy = Path(tempfile.mkdtemp(prefix="mcpenv-git-"))
        try:
            self._fill()
        except BaseException:
            shutil.rmtree(self._copy)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self._copy)

    def ask(self, *arguments: str, given: bytes = b"", may_fail: bool = False) -> bytes:
        """Return the output of a git command.

        Args:
            given: its input.
            may_fail: True to return an empty output if it fails.

        Raises:
            GitFailed: it failed, or took too long.
        """
        environment = {
            **_ENVIRONMENT,
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_DIR": str(self._copy),
            "GIT_OBJECT_DIRECTORY": str(self.directory / "objects"),
            "GIT_INDEX_FILE": str(self._copy / "index"),
        }
        if not self.bare:
            environment["GIT_WORK_TREE"] = str(self.folder)
        left_s = left_of_capture()
        timeout_s = TIMEOUT_S if left_s is None else min(TIMEOUT_S, left_s)
        try:
            done = subprocess.run(
                ["git", *arguments],
                input=given,
                capture_output=True,
                env=environment,
                cwd=self.folder,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise GitFailed("GitWorld needs the program git; install it") from error
        except subprocess.TimeoutExpired as error:
            raise GitFailed(f"{self.folder}: git {arguments[0]} took more than {timeout_s:g} s") from error
        if done.returncode and not may_fail:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise GitFailed(f"{self.folder}: git {arguments[0]} failed with status {done.returncode}: {said[-1]}")
        return b"" if done.returncode else done.stdout

    def contents(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield each of these blobs with its content.

        Raises:
            GitFailed: one of them is missing.
        """
        wanted = list(dict.fromkeys(blobs))
        answer = memoryview(self.ask("cat-file", "--batch", given="".join(f"{blob}\n" for blob in wanted).encode()))
        at = 0
        for blob in wanted:
            end = at + bytes(answer[at : at + 200]).index(b"\n")
            _, *about = bytes(answer[at:end]).split()
            if len(about) != 2:
                raise GitFailed(f"{self.folder}: object {blob} is missing")
            size = int(about[1])
            yield blob, bytes(answer[end + 1 : end + 1 + size])
            at = end + size + 2

    def _fill(self) -> None:
        """Copy the references and the index, and write a configuration."""
        own = _regular(self.directory / "config") or b""
        extensions = ""
        lowered = own.lower()
        if b"refstorage" in lowered and (self.directory / "reftable").exists():
            raise GitFailed(f"{self.folder}: the references of a reftable cannot be read; use the format 'files'")
        if b"objectformat" in lowered and b"sha256" in lowered:
            extensions = "[extensions]\n\tobjectFormat = sha256\n"
        config = _CONFIG.format(version=1 if extensions else 0, bare=str(self.bare).lower())
        (self._copy / "config").write_text(config + extensions)
        for name in ("HEAD", "packed-refs", "shallow", "info/exclude"):
            content = _regular(self.directory / name)
            if content is not None:
                (self._copy / name).parent.mkdir(exist_ok=True)
                (self._copy / name).write_bytes(content)
        (self._copy / "refs").mkdir()
        for folder, below, files in os.walk(self.directory / "refs"):
            place = self._copy / "refs" / Path(folder).relative_to(self.directory / "refs")
            for name in below:
                (place / name).mkdir()
            for name in files:
                content = _regular(Path(folder) / name)
                if content is not None:
                    (place / name).write_bytes(content)
        if not self.bare:
            self._fill_index()

    def _fill_index(self) -> None:
        """Rebuild the index from its entries, so that no entry is marked to be skipped."""
        given = self._copy / "given"
        for file in [self.directory / "index", *self.directory.glob("sharedindex.*")]:
            content = _regular(file)
            if content is not None:
                (given if file.name == "index" else self._copy / file.name).write_bytes(content)
        if not given.exists():
            return
        given.rename(self._copy / "index")
        entries = self.ask("ls-files", "--stage", "-z")
        (self._copy / "index").unlink()
        self.ask("update-index", "-z", "--index-info", given=entries)


def _regular(path: Path) -> bytes | None:
    """Return the content of a regular file; None if there is none. Links are not followed."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None  # absent, or a link
    with os.fdopen(file, "rb") as opened:
        return opened.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
