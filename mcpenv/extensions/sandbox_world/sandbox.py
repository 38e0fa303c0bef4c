"""Define `Sandbox`, a folder of files and a shell that works on it. It is a `World`."""

from __future__ import annotations

import errno
import hashlib
import importlib
import inspect
import pickle
import shlex
import stat
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from mcpenv.errors import ConfigurationError, meant
from mcpenv.worlds.world import Budget, Tree, free_key
from mcpenv_client.errors import McpenvError

FOLDER = PurePosixPath("/work")
"""The folder of the files. Each command starts in it."""

TIMED_OUT = 124
"""The exit status of a command that exceeded its time limit, as of the program ``timeout``."""

MAX_OUTPUT = 32_000
"""Maximum bytes of each output of a command. The middle of a longer output is left out."""

MAX_BYTES = 64 << 20
"""Maximum bytes of all files, of a capture, and of memory in process."""

MAX_TEXT = 256 << 10
"""Maximum bytes of a file that is captured as text. Other files are captured as their hash."""

_USUAL_FILE, _USUAL_FOLDER = 0o644, 0o755

LIMITS = f"ulimit -f {MAX_BYTES >> 10} -n 1024 -c 0"
"""The command of bash that limits each file, and the number of open files, of the commands after it."""

VARIABLES = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(FOLDER), "LANG": "C.UTF-8"}
"""The environment variables of commands where bash runs them."""


class SandboxFailed(McpenvError, RuntimeError):
    """Raised if a sandbox has ended, or its program does not answer."""


@dataclass(frozen=True)
class Completed:
    """The outcome of a command.

    Attributes:
        exit_code: its exit status; 124 if it exceeded its time limit.
        stdout, stderr: its output as UTF-8 text, other bytes replaced, at most `MAX_OUTPUT` bytes each, and a note
            where more was left out. ``stderr`` ends with a note if it exceeded its time limit.
        timed_out: True if it was stopped at its time limit.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False


@dataclass(frozen=True)
class Entry:
    """A file, link or folder of a sandbox.

    Attributes:
        path: relative to the folder, with "/" between its parts.
        mode: its type and permissions, as `os.lstat` has them.
        content: of a file its bytes, of a link its target, else None.
    """

    path: str
    mode: int
    content: bytes | str | None = None


CAPABILITIES = {
    "programs": "all programs of a system, among them those of the image or machine",
    "python": "a complete Python",
    "background": "a process may run beside the command's shell until the command ends",
    "ended": "no process outlives its command, also if it left the command's session",
    "bounded": "memory is bounded, and so is the number of processes if there are any",
}
"""What a backend may have, and what that means."""

HAVE = {
    "in_process": frozenset({"ended", "bounded"}),
    "bubblewrap": frozenset({"programs", "python", "background", "ended"}),
    "container": frozenset({"programs", "background", "ended", "bounded"}),
    "remote": frozenset({"programs", "background"}),
}
"""The capabilities of each backend, which `make_sandbox` reads before it imports any."""


class Sandbox(ABC):
    """A folder, ``/work``, and a shell for it. The base of every backend.

    Each command runs in a new shell that starts in the folder: files stay, while variables, the working folder of the
    shell and processes end with the command. What lies outside of the folder, such as ``/tmp``, is no state: `load`
    removes it.

    Captured as `FilesWorld` captures a folder: ``{path: {"text": ...}}``. Permissions other than 644 of a file and 755
    of a folder are ``"mode": "600"`` beside it; a folder with such permissions has an entry of its own. Saved bytes fit
    every backend.

    Args:
        timeout_s: maximum seconds of one command.
        env: environment variables of the commands, beside the backend's own.

    Attributes:
        backend: the name of the backend.
        capabilities: what it has, of `CAPABILITIES`.
        max_file: maximum bytes of a file.
    """

    backend: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]
    max_file: ClassVar[int]

    def __init__(self, *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> None:
        if not timeout_s > 0:
            raise ConfigurationError(f"timeout_s={timeout_s}: a command needs more than 0 s")
        self.timeout_s = timeout_s
        self.env = dict(env or {})

    @abstractmethod
    def run(self, command: str, *, stdin: bytes = b"") -> Completed:
        """Run a command by a new shell in the folder.

        Raises:
            SandboxFailed: the sandbox has ended.
            OSError: ``stdin`` is too large for a file of this backend.
        """

    @abstractmethod
    def entries(self) -> list[Entry]:
        """Return everything in the folder, sorted by path; a folder comes before its content.

        Raises:
            WorldUnreadable: the files are too large.
        """

    @abstractmethod
    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files.

        Raises:
            OSError: a file is too large for this backend.
        """

    @abstractmethod
    def close(self) -> None:
        """End all processes, and delete the files."""

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Args:
            path: relative to the folder.

        Raises:
            FileNotFoundError: there is no such file.
            WorldUnreadable: the files are too large.
        """
        wanted = path_in_folder(path)
        for entry in self.entries():
            if entry.path == wanted and isinstance(entry.content, bytes):
                return entry.content
        raise FileNotFoundError(f"there is no file {path!r}")

    def write(self, path: str, content: bytes) -> None:
        """Write a file, with the folders on its way.

        Raises:
            OSError: it cannot be written, or is too large for this backend.
        """
        self.check_size(path, content)
        quoted = shlex.quote(path_in_folder(path))
        done = self.run(f'mkdir -p -- "$(dirname -- {quoted})" && cat > {quoted}', stdin=content)
        if done.exit_code:
            raise OSError(done.stderr.strip() or f"exit status {done.exit_code}")

    def check_size(self, path: str, content: bytes | str | None) -> None:
        """Raise if a file is too large for this backend.

        Raises:
            OSError: it is.
        """
        if content is not None and len(content) > self.max_file:
            why = f"{len(content)} bytes, and a file of the backend {self.backend!r} has at most {self.max_file}"
            raise OSError(errno.EFBIG, why, path)

    def checked(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return entries, or raise as `check_size`."""
        given = list(entries)
        for entry in given:
            self.check_size(entry.path, entry.content)
        return given

    def missing(self, programs: Iterable[str]) -> list[str]:
        """Return the programs that this sandbox does not have."""
        names = list(dict.fromkeys(programs))
        if not names:
            return []
        lines = "\n".join(f"command -v {shlex.quote(name)} >/dev/null || echo {shlex.quote(name)}" for name in names)
        absent = set(self.run(lines).stdout.splitlines())
        return [name for name in names if name in absent]

    def require(self, programs: Iterable[str]) -> None:
        """Raise if a program is missing.

        Raises:
            ConfigurationError: it names the programs.
        """
        if absent := self.missing(programs):
            raise ConfigurationError(f"the backend {self.backend!r} lacks {', '.join(absent)}; choose another backend")

    # -- the world

    def capture(self) -> Tree:
        """Return the files for verifiers.

        Raises:
            WorldUnreadable: the files are too large.
        """
        return captured(self.entries())

    def save(self) -> bytes:
        """Return the files, links and folders with their permissions.

        Raises:
            WorldUnreadable: the files are too large.
        """
        return pickle.dumps([(entry.path, entry.mode, entry.content) for entry in self.entries()])

    def load(self, saved: bytes) -> None:
        """Start anew with saved files."""
        self.fill(Entry(*each) for each in pickle.loads(saved))

    def held(self) -> tuple[object, ...]:
        """Return nothing: only the world itself refers to the sandbox."""
        return ()


def path_in_folder(path: str) -> str:
    """Return a path relative to the folder.

    Raises:
        FileNotFoundError: it is outside.
    """
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute():
        if PurePosixPath(path).parts[: len(FOLDER.parts)] != FOLDER.parts:
            raise FileNotFoundError(f"{path!r} is not in {FOLDER}")
        parts = parts[len(FOLDER.parts) :]
    if not parts or ".." in parts or "\0" in path:
        raise FileNotFoundError(f"{path!r} is not a file in {FOLDER}")
    return "/".join(parts)


def captured(entries: Sequence[Entry]) -> Tree:
    """Return files, links and folders for verifiers, as `Sandbox` describes it.

    Args:
        entries: sorted, a folder before its content.
    """
    tree: Tree = {}
    filled = {entry.path.rpartition("/")[0] for entry in entries}
    for entry in entries:
        permissions = stat.S_IMODE(entry.mode)
        if stat.S_ISDIR(entry.mode):
            seen: dict[str, Any] = {"folder": True}
            usual = _USUAL_FOLDER
            if permissions == usual and entry.path in filled:
                continue
        else:
            seen = _look(entry)
            usual = permissions if stat.S_ISLNK(entry.mode) else _USUAL_FILE
        if permissions != usual:
            seen["mode"] = f"{permissions:o}"
        tree[free_key(entry.path, tree)] = seen
    return tree


def files(content: dict[str, bytes], modes: dict[str, int] | None = None) -> list[Entry]:
    """Return entries for files, and for the folders on their way.

    Args:
        content: the bytes of each file by path.
        modes: permissions of files and folders by path, if not 644 and 755.
    """
    modes = modes or {}
    made: dict[str, Entry] = {}
    for path, data in sorted(content.items()):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            made.setdefault(above, Entry(above, stat.S_IFDIR | modes.get(above, _USUAL_FOLDER)))
        made[path] = Entry(path, stat.S_IFREG | modes.get(path, _USUAL_FILE), data)
    return sorted(made.values(), key=lambda entry: entry.path.split("/"))


def counted(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries sorted, with a folder before its content.

    Raises:
        WorldUnreadable: they are larger than `MAX_BYTES`, or reading takes too long.
    """
    budget = Budget("the sandbox", MAX_BYTES, setting=None)
    kept = []
    for entry in entries:
        budget.take(len(entry.content) if isinstance(entry.content, bytes) else 0)
        kept.append(replace(entry, path=entry.path.removeprefix("./")))
    return sorted(kept, key=lambda entry: entry.path.split("/"))


def shown(output: bytes, size: int | None = None) -> str:
    """Return an output as text; the middle of a long one is replaced by a note.

    Args:
        size: the original number of bytes, if ``output`` is only its beginning and its end.
    """
    size = len(output) if size is None else size
    if size > MAX_OUTPUT:
        head, tail = output[: MAX_OUTPUT // 2], output[-(MAX_OUTPUT // 2) :]
        output = head + f"\n[... {size - MAX_OUTPUT} bytes left out ...]\n".encode() + tail
    return output.decode("utf-8", "replace")


class Kept:
    """The beginning and the end of an output that is still written."""

    def __init__(self) -> None:
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        """Add what was written next."""
        self._size += len(chunk)
        room = MAX_OUTPUT // 2 - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -(MAX_OUTPUT // 2)]

    def text(self) -> str:
        """Return the output so far, as `shown`."""
        return shown(bytes(self._head + self._tail), self._size)


def _look(entry: Entry) -> dict[str, Any]:
    if isinstance(entry.content, str):
        return {"link": entry.content}
    if entry.content is None:
        return {"special": stat.filemode(entry.mode)[0]}
    if len(entry.content) <= MAX_TEXT:
        try:
            return {"text": entry.content.decode()}
        except UnicodeDecodeError:
            pass  # not a text
    return {"sha256": hashlib.sha256(entry.content).hexdigest(), "size": len(entry.content)}


BACKENDS = {
    "in_process": "in_process:InProcessSandbox",
    "bubblewrap": "bubblewrap:BubblewrapSandbox",
    "container": "container:ContainerSandbox",
    "remote": "remote:RemoteSandbox",
}
"""The modules of this package and their classes, by the name of the backend."""


def make_sandbox(
    backend: str = "in_process",
    *,
    timeout_s: float = 30.0,
    env: dict[str, str] | None = None,
    needs: Collection[str] = (),
    **options: Any,
) -> Sandbox:
    """Return a new sandbox with an empty folder.

    Args:
        backend: one of `BACKENDS`.
        timeout_s: maximum seconds of one command.
        env: environment variables of the commands.
        needs: `CAPABILITIES` without which a backend is refused, before anything is started.
        options: further options of the backend: ``image`` of "container", ``pool`` and others of "remote".

    Raises:
        ConfigurationError: there is no such backend, capability or option, the backend lacks a capability, or this
            machine cannot run it; with the reason.
    """
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"there is no backend {backend!r} (there are: {', '.join(BACKENDS)}){meant(backend, BACKENDS)}"
        )
    for need in needs:
        if need not in CAPABILITIES:
            raise ConfigurationError(
                f"there is no capability {need!r} (there are: {', '.join(CAPABILITIES)}){meant(need, CAPABILITIES)}"
            )
    if lacks := [need for need in needs if need not in HAVE[backend]]:
        fit = [name for name in BACKENDS if HAVE[name] >= frozenset(needs)]
        hint = f"choose {' or '.join(fit)}" if fit else "no backend has them all"
        raise ConfigurationError(f"the backend {backend!r} lacks the capability {', '.join(lacks)}; {hint}")
    module, _, name = BACKENDS[backend].partition(":")
    cls: type[Sandbox] = getattr(importlib.import_module(f".{module}", __package__), name)
    known = inspect.signature(cls).parameters
    for option in options:
        if option not in known:
            raise ConfigurationError(f"the backend {backend!r} has no option {option!r}{meant(option, known)}")
    return cls(timeout_s=timeout_s, env=env, **options)
