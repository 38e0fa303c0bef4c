"""Isolation: run agents' programs by bubblewrap, where they see neither the environment's files nor any results."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from mcpenv.errors import ConfigurationError

Choice = Literal["auto", "bubblewrap", "none"]
"""``auto`` isolates where bubblewrap works; ``bubblewrap`` requires it."""

NOT_ISOLATED = "not isolated"

PROBE_S = 10.0
"""Timeout of the check that bubblewrap works, in seconds."""

# A capability could unmount what hides a folder.
_BASE = ("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL")
_ROOT = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")

_EMPTY = ("/tmp", "/var/tmp", "/run")
"""Folders with files and sockets of other programs. A program gets empty ones, which it can write to."""

_RESOLVERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd")
"""Folders to which /etc/resolv.conf may lead."""

_TRANSCRIPTS = (".claude/projects", ".codex/sessions", ".gemini/tmp", ".local/share/goose/sessions")
"""Folders of the home folder in which agents keep conversations, also those of earlier episodes."""


class _Mount(StrEnum):
    EMPTY = "empty"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Isolation:
    """The isolation of agents' programs.

    Attributes:
        bwrap: the path of bubblewrap's program; None if programs are not isolated.
        reason: why they are not isolated; None if they are.
    """

    bwrap: str | None
    reason: str | None = None

    @classmethod
    def choose(cls, choice: Choice) -> Isolation:
        """Return the isolation that is asked for. Blocks until bubblewrap has run once.

        Raises:
            ConfigurationError: ``choice`` is ``bubblewrap``, which is missing or does not work on this machine.
        """
        if choice == "none":
            return cls(None, "it is switched off")
        bwrap = shutil.which("bwrap")
        reason = "bubblewrap (bwrap) is not installed" if bwrap is None else _fault(bwrap)
        if reason is None:
            return cls(bwrap)
        if choice == "bubblewrap":
            raise ConfigurationError(f"the agent cannot be isolated: {reason}")
        return cls(None, reason)

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
        shared.

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
        arguments = [argument for mount in _arguments(mounts) for argument in mount]
        # In a file, because /proc shows the program the arguments of its first process, and these name hidden folders.
        with tempfile.TemporaryFile() as file:
            file.write(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
            file.seek(0)
            options = [*_BASE, *_ROOT, "--args", str(file.fileno()), "--chdir", str(scratch)]
            yield [self.bwrap, *options, "--", *words], [file.fileno()]


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


def installation_of(program: Path) -> Path:
    """Return what a program needs beside system libraries: its virtual environment, its npm packages, or the file."""
    for folder in program.parents:
        if (folder / "pyvenv.cfg").is_file():
            return folder
    modules = [folder for folder in program.parents if folder.name == "node_modules"]
    return modules[-1] if modules else program


def _fault(bwrap: str) -> str | None:
    """Return why bubblewrap does not work on this machine; None if it works."""
    try:
        done = subprocess.run(
            [bwrap, *_BASE, *_ROOT, "--tmpfs", "/tmp", "--", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"bubblewrap does not work here: {lines[-1] if lines else f'exit status {done.returncode}'}"


def _mounts(scratch: Path, hidden: Sequence[Path], shown: Iterable[Path]) -> dict[Path, _Mount]:
    """Return what becomes of folders and files of the system. A folder's mount holds for what is in it, too.

    Raises:
        ConfigurationError: a folder to hide contains the home folder.
    """
    home = _home()
    mounts = dict.fromkeys(map(Path, [*_EMPTY, tempfile.gettempdir()]), _Mount.EMPTY)
    mounts |= dict.fromkeys(map(Path, _RESOLVERS), _Mount.READ)
    if home is not None:
        mounts[home] = _Mount.WRITE
        mounts |= dict.fromkeys((home / name for name in _TRANSCRIPTS), _Mount.EMPTY)
    mounts |= dict.fromkeys((each for path in shown for each in (path, path.resolve())), _Mount.READ)
    for path in hidden:
        if home is not None and home.is_relative_to(path):
            raise ConfigurationError(
                f"{path} contains the home folder {home}, so it cannot be hidden from the agent; move the environment "
                "or the results to a folder of their own, or use --isolation none"
            )
        mounts[path] = _Mount.EMPTY
    mounts[scratch.resolve()] = _Mount.WRITE
    return mounts


def _home() -> Path | None:
    """Return the user's home folder; None if there is none."""
    home = Path(os.path.expanduser("~")).resolve()
    return home if home.is_dir() and home != Path("/") else None


def _arguments(mounts: dict[Path, _Mount]) -> Iterator[tuple[str, ...]]:
    """Yield bubblewrap's arguments for mounts, each after those that contain it, and none that changes nothing."""
    done: dict[Path, _Mount] = {}
    for path in sorted(mounts, key=lambda path: len(path.parts)):
        mount = mounts[path]
        around = next((done[folder] for folder in path.parents if folder in done), _Mount.READ)
        if mount is around or (mount is _Mount.READ and around is _Mount.WRITE) or not path.exists():
            continue
        done[path] = mount
        if mount is _Mount.WRITE:
            yield "--bind", str(path), str(path)
        elif mount is _Mount.READ:
            yield "--ro-bind", str(path), str(path)
        elif path.is_dir():
            yield "--tmpfs", str(path)
        else:
            yield "--ro-bind", "/dev/null", str(path)


__all__ = ["NOT_ISOLATED", "Choice", "Isolation", "history_of", "installation_of"]
