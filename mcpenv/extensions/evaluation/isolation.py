"""Isolation: run agents' programs by bubblewrap, where they see neither the environment's files nor any results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.sandbox.bubblewrap import READ_ONLY_ROOT, command_line, find_bubblewrap, tmpfs
from mcpenv.extensions.sandbox.mounts import Mount, mount_arguments, temporary_mounts

Choice = Literal["auto", "bubblewrap", "none"]
"""``auto`` isolates where bubblewrap works; ``bubblewrap`` requires it."""

NOT_ISOLATED = "not isolated"

_TRANSCRIPTS = (".claude/projects", ".codex/sessions", ".gemini/tmp", ".local/share/goose/sessions")
"""Folders in the home folder in which agents store conversations, including earlier episodes."""


@dataclass(frozen=True)
class Isolation:
    """The isolation of agents' programs.

    Attributes:
        bwrap: the path of bubblewrap's program; None if programs are not isolated.
        reason: the reason for not isolating them; None if they are isolated.
    """

    bwrap: str | None
    reason: str | None = None

    @classmethod
    def choose(cls, choice: Choice) -> Isolation:
        """Return the requested isolation. Blocks until bubblewrap has run once.

        Raises:
            ConfigurationError: ``choice`` is ``bubblewrap``, which is missing or does not work on this machine; or the
                size of its folders in memory is no number of MiB.
        """
        if choice == "none":
            return cls(None, "it is switched off")
        try:
            bwrap = find_bubblewrap()
        except ConfigurationError as error:
            if choice == "bubblewrap":
                raise ConfigurationError(f"the agent cannot be isolated: {error}") from error
            return cls(None, str(error))
        tmpfs(bwrap)  # a size that cannot be used is no reason to run without isolation
        return cls(bwrap)

    def __str__(self) -> str:
        """Return the name in reports."""
        return NOT_ISOLATED if self.bwrap is None else "bubblewrap"

    @contextmanager
    def command(
        self, words: Sequence[str], scratch: Path, hidden: Iterable[Path], shown: Iterable[Path]
    ) -> Iterator[tuple[list[str], list[int]]]:
        """Yield the command line that runs ``words`` in ``scratch``, and the file descriptors that it needs.

        Without isolation the command line is ``words``. With it, the program has its own process ids. It can write to
        ``scratch``, the home folder and empty temporary folders, and read the rest of the system. The network is
        shared, before Linux 6.12 with abstract Unix sockets.

        Args:
            hidden: files and folders that the program must not see.
            shown: files and folders that it may read although they are in hidden or temporary folders.

        Raises:
            ConfigurationError: a folder to hide contains the home folder, and with it the agent's configuration.
        """
        if self.bwrap is None:
            yield list(words), []
            return
        mounts = _mounts(scratch, [path.resolve() for path in hidden if path.exists()], shown)
        arguments = [argument for mount in mount_arguments(mounts, tmpfs(self.bwrap)) for argument in mount]
        # In a file, because /proc shows the program the arguments of its first process, which name hidden folders.
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
            file.seek(0)
            more = ["--args", str(file.fileno()), "--chdir", str(scratch)]
            yield command_line(self.bwrap, words, root=READ_ONLY_ROOT, mounts=more, network=True), [file.fileno()]


def history_of(path: Path) -> list[Path]:
    """Return the git repository that may contain earlier versions of a file or folder; empty if there is none."""
    for folder in (path, *path.parents):
        git = folder / ".git"
        if git.is_dir():
            return [git]
        if git.is_file():  # a worktree: the file names a folder in the repository
            named = Path(git.read_text(encoding="utf-8", errors="replace").removeprefix("gitdir:").strip())
            return [next((each for each in named.parents if each.name == ".git"), named)]
    return []


def _mounts(scratch: Path, hidden: Sequence[Path], shown: Iterable[Path]) -> dict[Path, Mount]:
    """Return the mounts for system folders and files. A folder's mount also applies to its content.

    Raises:
        ConfigurationError: a folder to hide contains the home folder.
    """
    home = _home()
    mounts = temporary_mounts()
    if home is not None:
        mounts[home] = Mount.WRITE
        mounts |= dict.fromkeys((home / name for name in _TRANSCRIPTS), Mount.EMPTY)
    mounts |= dict.fromkeys((each for path in shown for each in (path, path.resolve())), Mount.READ)
    for path in hidden:
        if home is not None and home.is_relative_to(path):
            raise ConfigurationError(
                f"{path} contains the home folder {home}, so it cannot be hidden from the agent; move the environment "
                "or the results to a folder of their own, or use --isolation none"
            )
        mounts[path] = Mount.EMPTY
    mounts[scratch.resolve()] = Mount.WRITE
    return mounts


def _home() -> Path | None:
    """Return the user's home folder; None if there is none."""
    home = Path(os.path.expanduser("~")).resolve()
    return home if home.is_dir() and home != Path("/") else None
