"""The file system of a program in bubblewrap: folders that it reads, writes, or finds empty."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

_EMPTY = ("/tmp", "/var/tmp", "/run")

_RESOLVERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd")
"""Folders to which /etc/resolv.conf may lead."""


class Mount(StrEnum):
    """The form in which a folder or file of the system is mounted."""

    EMPTY = "empty"
    READ = "read"
    WRITE = "write"


def temporary_mounts() -> dict[Path, Mount]:
    """Return the mounts that replace folders with files and sockets of other programs by empty, writable ones."""
    mounts = dict.fromkeys(map(Path, [*_EMPTY, tempfile.gettempdir()]), Mount.EMPTY)
    return mounts | dict.fromkeys(map(Path, _RESOLVERS), Mount.READ)


def mount_arguments(mounts: Mapping[Path, Mount], tmpfs: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield bubblewrap's arguments for mounts. A mount follows the mounts that contain it.

    A folder's mount also applies to its content. Mounts without an effect are left out. Files without a mount are
    readable.

    Args:
        tmpfs: the words before the path of a folder in memory; see `bubblewrap.tmpfs`.
    """
    done: dict[Path, Mount] = {}
    for path in sorted(mounts, key=lambda path: len(path.parts)):
        mount = mounts[path]
        around = next((done[folder] for folder in path.parents if folder in done), Mount.READ)
        if mount is around or (mount is Mount.READ and around is Mount.WRITE) or not path.exists():
            continue
        if mount is Mount.EMPTY and not _is_reached(path):
            continue  # bubblewrap could not mount there either
        done[path] = mount
        if mount is Mount.WRITE:
            yield "--bind", str(path), str(path)
        elif mount is Mount.READ:
            yield "--ro-bind", str(path), str(path)
        elif path.is_dir():
            yield *tmpfs, str(path)
        else:
            yield "--ro-bind", "/dev/null", str(path)


def _is_reached(path: Path) -> bool:
    """Return True if this user reaches a path without capabilities, as programs in bubblewrap do."""
    user, groups = os.geteuid(), {os.getegid(), *os.getgroups()}
    for folder in path.resolve().parents:
        status = folder.stat()
        if status.st_uid == user:
            searched = status.st_mode & stat.S_IXUSR
        elif status.st_gid in groups:
            searched = status.st_mode & stat.S_IXGRP
        else:
            searched = status.st_mode & stat.S_IXOTH
        if not searched:
            return False
    return True


def installation_of(program: Path) -> Path:
    """Return the path that a program needs besides system libraries: its virtual environment, npm packages, or file."""
    for folder in program.parents:
        if (folder / "pyvenv.cfg").is_file():
            return folder
    modules = [folder for folder in program.parents if folder.name == "node_modules"]
    return modules[-1] if modules else program
