"""Run commands by bash and the programs of this machine, in bubblewrap."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, ClassVar

from mcpenv.extensions.sandbox.bubblewrap import command_line, find_bubblewrap, tmpfs

from .sandbox import (
    FOLDER,
    HAVE,
    LIMITS,
    MAX_BYTES,
    TIMED_OUT,
    VARIABLES,
    Completed,
    Entry,
    Kept,
    Sandbox,
    SandboxFailed,
    counted,
)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/mime.types")
_RUN = f'{LIMITS}; exec bash -c "$1"'
"""Runs a command. The number and memory of processes are limited as those of this machine's user."""

_CHUNK = 64 << 10


class BubblewrapSandbox(Sandbox):
    """A sandbox with the programs below ``/usr`` of this machine, without a network.

    It sees ``/work``, an empty ``/tmp`` for each command, and no other file of this machine than programs.

    Raises:
        ConfigurationError: bubblewrap is missing, or does not work here.
    """

    backend = "bubblewrap"
    capabilities: ClassVar = HAVE["bubblewrap"]
    max_file: ClassVar = MAX_BYTES

    def __init__(self, *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> None:
        super().__init__(timeout_s=timeout_s, env=env)
        self._bwrap = find_bubblewrap()
        self._place: Path | None = Path(tempfile.mkdtemp(prefix="mcpenv-sandbox-"))
        self._root = [*system_folders(), "--dir", str(FOLDER)]
        (self._place / "work").mkdir()

    def run(self, command: str, *, stdin: bytes = b"") -> Completed:
        """Run a command, as `Sandbox.run`."""
        words = command_line(
            self._bwrap,
            ["bash", "-c", _RUN, "bash", command],
            root=self._root,
            mounts=(*tmpfs(self._bwrap), "/tmp", "--bind", str(self._folder), str(FOLDER), "--remount-ro", "/"),
            network=False,
            sysfs=False,
            options=("--clearenv", *self._variables(), "--chdir", str(FOLDER)),
        )
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as process:
            kept = (Kept(), Kept())
            threads = [threading.Thread(target=_give, args=(process.stdin, stdin))]
            for stream, of in zip((process.stdout, process.stderr), kept, strict=True):
                threads.append(threading.Thread(target=_keep, args=(stream, of)))
            for thread in threads:
                thread.start()
            timed_out = False
            try:
                process.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                process.kill()  # with it the processes that it left
                for thread in threads:
                    thread.join()
        out, err = (each.text() for each in kept)
        if timed_out:
            return Completed(TIMED_OUT, out, f"{err}the command exceeded its time limit ({self.timeout_s:g} s)\n", True)
        return Completed(process.returncode, out, err)

    def entries(self) -> list[Entry]:
        """Return everything in the folder, as `Sandbox.entries`."""
        return counted(_walk(self._folder))

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files."""
        folder, given = self._folder, self.checked(entries)
        _remove(folder)
        folder.mkdir()
        for entry in given:
            place = folder / entry.path
            if stat.S_ISDIR(entry.mode):
                place.mkdir(exist_ok=True)
            elif isinstance(entry.content, str):
                place.symlink_to(entry.content)
            else:
                place.write_bytes(entry.content or b"")
        for entry in reversed(given):  # last, because a read-only folder could not be filled
            if not stat.S_ISLNK(entry.mode):
                (folder / entry.path).chmod(stat.S_IMODE(entry.mode))

    def close(self) -> None:
        """End the sandbox, and delete its files. A second call does nothing."""
        if self._place is not None:
            _remove(self._place / "work")
            shutil.rmtree(self._place)
            self._place = None

    @property
    def _folder(self) -> Path:
        if self._place is None:
            raise SandboxFailed("the sandbox is closed")
        return self._place / "work"

    def _variables(self) -> Iterator[str]:
        for name, value in {**VARIABLES, **self.env}.items():
            yield from ("--setenv", name, value)


def system_folders() -> Iterator[str]:
    """Yield the options of bubblewrap for the programs of this machine, and for the settings that they read."""
    for name in (*_SYSTEM, *_SETTINGS):
        path = Path(name)
        if path.is_symlink() and name in _SYSTEM:
            yield from ("--symlink", os.readlink(path), name)
        elif path.exists():
            yield from ("--ro-bind", name, name)


def _walk(folder: Path, inside: str = "") -> Iterator[Entry]:
    with _readable(folder / inside):
        names = sorted(os.listdir(folder / inside))
        for name in names:
            path = f"{inside}/{name}" if inside else name
            place = folder / path
            mode = place.lstat().st_mode
            shown_path = os.fsencode(path).decode(errors="replace")
            if stat.S_ISLNK(mode):
                yield Entry(shown_path, mode, os.fsencode(os.readlink(place)).decode(errors="replace"))
            elif stat.S_ISREG(mode):
                with _readable(place):
                    content = place.read_bytes() if place.lstat().st_size <= MAX_BYTES else b"\0" * (MAX_BYTES + 1)
                yield Entry(shown_path, mode, content)
            else:
                yield Entry(shown_path, mode)
            if stat.S_ISDIR(mode):
                yield from _walk(folder, path)


@contextlib.contextmanager
def _readable(place: Path) -> Iterator[None]:
    """Let the owner read a file or folder while the block runs: a command may have taken its permissions."""
    mode = stat.S_IMODE(place.lstat().st_mode)
    wanted = mode | (0o500 if place.is_dir() else 0o400)
    if wanted == mode:
        yield
        return
    place.chmod(wanted)
    try:
        yield
    finally:
        place.chmod(mode)


def _remove(folder: Path) -> None:
    """Remove a folder, also one in which a command has taken permissions."""
    for inside, names, _ in os.walk(folder):
        for name in names:
            place = Path(inside, name)
            if not place.is_symlink():
                place.chmod(0o700)
    shutil.rmtree(folder)


def _give(pipe: IO[bytes] | None, data: bytes) -> None:
    assert pipe is not None
    with contextlib.suppress(BrokenPipeError), pipe:  # a command need not read its input
        pipe.write(data)


def _keep(stream: IO[bytes] | None, kept: Kept) -> None:
    assert stream is not None
    while chunk := stream.read(_CHUNK):
        kept.add(chunk)
