"""The folder of an episode, made from a template."""

from __future__ import annotations

import atexit
import ctypes
import errno
import hashlib
import itertools
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcpenv.errors import ConfigurationError

from .host_files import WORKSPACE

logger = logging.getLogger("mcpenv.upstream")

WORTH_AN_OVERLAY = 500
"""Number of files from which `auto` prefers an overlay.

Copying fewer files takes a few milliseconds, and leaves no mount.
"""

DELETIONS = 100
"""Attempts to delete a folder in which something else makes or deletes files at the same time."""

_MNT_DETACH = 2
_removing = threading.Lock()


@dataclass(frozen=True)
class Template:
    """The initial content of every workspace of a class.

    Attributes:
        folder: the folder; None for an empty one.
        overlaid: True if workspaces are laid over it, False if they are copies.
        digest: the SHA-256 of its files.
    """

    folder: Path | None
    overlaid: bool
    digest: str

    @classmethod
    def prepare(cls, folder: Path | None, by: Literal["auto", "copy", "overlay"]) -> Template:
        """Return the template of a folder. Blocks while its files are read.

        Raises:
            ConfigurationError: ``by`` is "overlay", and this machine cannot.
        """
        if folder is None:
            if by == "overlay":
                raise ConfigurationError('mcpenv.workspaces: "overlay" needs a folder, mcpenv.workspace')
            return cls(None, False, hashlib.sha256().hexdigest())
        overlaid = by == "overlay"
        if by == "auto":
            files = itertools.islice(folder.rglob("*"), WORTH_AN_OVERLAY)
            overlaid = sum(1 for _ in files) == WORTH_AN_OVERLAY and fault_of_overlay(folder) is None
        elif overlaid:
            fault = fault_of_overlay(folder)
            if fault is not None:
                raise ConfigurationError(f'mcpenv.workspaces: "overlay": {fault}; use "copy"')
        return cls(folder, overlaid, digest_of(folder))


class Workspace:
    """A temporary folder that servers work in. `restore` makes it equal to the template.

    Args:
        template: the content after each restore.
    """

    def __init__(self, template: Template) -> None:
        self._home = make_folder("mcpenv-workspace-", self._uncover)
        self.path = self._home / "files"
        self.path.mkdir()
        self._template = template
        self._overlay: Overlay | None = None
        self._layers = itertools.count()

    def restore(self, *, in_place: bool = True) -> None:
        """Make the folder equal to the template. Its path does not change.

        Args:
            in_place: True if a running process uses the folder. False lets the folder be remounted.
        """
        if self._template.overlaid and not (in_place and self._overlay is not None):
            self._lay_over()
        else:
            _make_equal(self.path, self._template.folder)

    def digest(self) -> str:
        """Return the SHA-256 of the names, kinds, permissions and contents of all files, in hexadecimal digits.

        An overlay to which nothing was written has the digest of its template.
        """
        if self._overlay is not None and not any(self._overlay.upper.iterdir()):
            return self._template.digest
        return digest_of(self.path)

    def remove(self) -> None:
        """Delete the folder in the background. Files that a process still writes or locks are left, and logged."""
        try:
            self._uncover()
            gone = self._home.with_name(f"{self._home.name}-removed")
            self._home.rename(gone)
        except OSError as error:
            logger.warning("workspace %s is not deleted: %s", self.path, error)
        else:
            _existing[gone] = _existing.pop(self._home)
            remove_in_background(gone)

    def fill(self, value: Any, path: str | None = None) -> Any:
        """Return a JSON value with ``{workspace}`` replaced by the folder's path, or by the given path."""
        if isinstance(value, str):
            return value.replace(WORKSPACE, path or str(self.path))
        if isinstance(value, dict):
            return {key: self.fill(item, path) for key, item in value.items()}
        return [self.fill(item, path) for item in value] if isinstance(value, list) else value

    def _lay_over(self) -> None:
        assert self._template.folder is not None
        self._uncover()
        layers = self._home / f"layers-{next(self._layers)}"
        layers.mkdir()
        self._overlay = Overlay(self._template.folder, layers, self.path)
        self._overlay.mount()

    def _uncover(self) -> None:
        overlay, self._overlay = self._overlay, None
        if overlay is not None:
            overlay.unmount()
            remove_in_background(overlay.upper.parent)


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of names, kinds, permissions and contents of all files in a folder, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            digest.update(f"link {name}\0{path.readlink()}\0".encode())
        elif stat.S_ISDIR(found.st_mode):
            digest.update(f"folder {name}\0".encode())
        elif stat.S_ISREG(found.st_mode):
            content = path.read_bytes()
            mode = stat.S_IMODE(found.st_mode)
            digest.update(f"file {name}\0{mode:o} {len(content)}\0".encode() + content)
        else:  # opening a pipe or a socket would block
            digest.update(f"special {name}\0".encode())
    return digest.hexdigest()


def _make_equal(folder: Path, template: Path | None) -> None:
    """Make a folder equal to another one. Write only files that differ: a process may use the folder."""
    wanted = {} if template is None else {entry.name: entry for entry in os.scandir(template)}
    for entry in os.scandir(folder):
        other = wanted.get(entry.name)
        if other is not None and _kind(other) == _kind(entry):
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, entry in wanted.items():
        path, source = folder / name, Path(entry.path)
        if entry.is_symlink():
            if not path.is_symlink() or path.readlink() != source.readlink():
                path.unlink(missing_ok=True)
                path.symlink_to(source.readlink())
        elif entry.is_dir():
            path.mkdir(exist_ok=True)
            _make_equal(path, source)
            shutil.copystat(source, path)
        elif not _same_file(path, source):
            _write_over(path, source)


def _kind(entry: os.DirEntry[str]) -> int:
    return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)


def _same_file(path: Path, other: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    expected = other.lstat()
    return (
        found.st_size == expected.st_size
        and stat.S_IMODE(found.st_mode) == stat.S_IMODE(expected.st_mode)
        and path.read_bytes() == other.read_bytes()
    )


def _write_over(path: Path, source: Path) -> None:
    """Copy a file.

    An existing file is overwritten in place, because a server that has it open would keep reading a replaced one.
    """
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        if error.errno not in (errno.ETXTBSY, errno.EACCES):  # it is being executed, or is read-only
            raise
        path.unlink()
        shutil.copyfile(source, path)
    shutil.copystat(source, path)


_existing: dict[Path, Callable[[], None]] = {}
"""The temporary folders of this process, each with what to do before its deletion. None of them outlives the process.

A command that ends early, as by Ctrl-C, leaves folders of servers that were starting.
"""

os.register_at_fork(after_in_child=_existing.clear)


def make_folder(prefix: str, before_deletion: Callable[[], None] = lambda: None) -> Path:
    """Return a new temporary folder, which is deleted at the exit of this process if nothing deletes it before.

    Args:
        prefix: the beginning of its name.
        before_deletion: called at the exit, before the folder is deleted.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    _existing[folder] = before_deletion
    return folder


def remove_in_background(folder: Path) -> None:
    """Delete a folder in a thread, which this process waits for at its exit."""
    with suppress(RuntimeError):  # the interpreter ends, and starts no threads: `_remove_all` deletes the folder
        threading.Thread(target=_remove, args=(folder,), name="mcpenv-removal").start()


def _remove(folder: Path) -> None:
    fault: OSError | None = None
    with _removing:
        for _ in range(DELETIONS):
            try:
                shutil.rmtree(folder)
            except OSError as error:
                fault = error
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    break
            if not folder.exists():
                _existing.pop(folder, None)
                return
    logger.warning("%s is not deleted: %s", folder, fault)


@atexit.register
def _remove_all() -> None:
    for folder, before_deletion in list(_existing.items()):
        with suppress(OSError):
            before_deletion()
        _remove(folder)


# -- overlays


class Overlay:
    """A folder mounted over another by overlayfs: it shows the files of one, and stores all writes in another.

    Its cost does not depend on the number of files, as that of a copy does. It needs root, on Linux.

    Args:
        lower: the folder below. It must not change while the overlay exists.
        folder: an empty folder for the writes.
        target: the empty folder where the result is mounted.
    """

    def __init__(self, lower: Path, folder: Path, target: Path) -> None:
        self._lower = lower
        self._target = target
        self.upper = folder / "upper"
        self._work = folder / "work"
        self.upper.mkdir()
        self._work.mkdir()

    def mount(self) -> None:
        """Mount the overlay.

        Raises:
            OSError: the system refuses.
        """
        options = f"lowerdir={self._lower},upperdir={self.upper},workdir={self._work}"
        _system_call("mount", b"overlay", os.fsencode(self._target), b"overlay", 0, os.fsencode(options))

    def unmount(self) -> None:
        """Unmount. Open files stay usable.

        Raises:
            OSError: the system refuses.
        """
        _system_call("umount2", os.fsencode(self._target), _MNT_DETACH)


def fault_of_overlay(lower: Path) -> str | None:
    """Return why this machine cannot use a folder as the lower layer; None if it can."""
    if sys.platform != "linux":
        return "overlayfs is a file system of Linux"
    if any(character in str(lower) for character in ",:\\"):
        return f"the path {lower} has a character that overlayfs does not take"
    with tempfile.TemporaryDirectory(prefix="mcpenv-overlay-") as folder:
        target = Path(folder, "target")
        target.mkdir()
        try:
            overlay = Overlay(lower, Path(folder), target)
            overlay.mount()
            overlay.unmount()
        except OSError as error:
            return f"the system does not mount overlayfs ({error.strerror}); it takes root, outside of most containers"
    return None


def _system_call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
