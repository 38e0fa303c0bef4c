"""Run commands by bashkit, a shell in this process with a file system in memory. Needs ``mcpenv[terminal]``."""

from __future__ import annotations

import shlex
import stat
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from mcpenv.errors import ConfigurationError

from .sandbox import FOLDER, HAVE, MAX_BYTES, TIMED_OUT, Completed, Entry, Sandbox, SandboxFailed, counted, shown

try:
    import bashkit
except ImportError as error:
    raise ConfigurationError("the backend 'in_process' needs bashkit: pip install 'mcpenv[terminal]'") from error

MAX_AWAKE = 1000
"""Maximum shells of a process that are live objects, of which each has three file descriptors. Further ones are kept as
their saved state, and continue when they are used. They take half of the files that the process may open at most."""

_OF_ITS_OWN = frozenset({"unzip", "zip"})
"""Commands of bashkit that have the name of a program, but another format and other options."""

_MAX_COMMANDS = 100_000
_TYPES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}
_STDIN = "/tmp/.stdin"
_MAX_KEPT = 1 << 20
"""Bytes of each output that the shell keeps. Of a shell in it, it does not report that there was more."""


class InProcessSandbox(Sandbox):
    """A sandbox of bashkit: about 160 commands (awk, sed, grep, jq, tar, sqlite3, ...), no program of this machine.

    It has no access to files, processes and the network of this machine. ``python3`` is a subset without most of the
    standard library. ``$RANDOM`` is seeded; ``date``, ``mktemp`` and file times use the real clock.

    Raises:
        ConfigurationError: bashkit is not installed.
    """

    backend = "in_process"
    capabilities: ClassVar = HAVE["in_process"]
    max_file: ClassVar = 10_000_000

    def __init__(self, *, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> None:
        super().__init__(timeout_s=timeout_s, env=env)
        self._options: dict[str, Any] = {
            "cwd": str(FOLDER),
            "env": self.env,
            "python": True,
            "sqlite": True,
            "max_commands": _MAX_COMMANDS,
            "max_memory": MAX_BYTES,
            "timeout_seconds": timeout_s,
        }
        self._lock = threading.Lock()
        self._closed = False
        self._state: bytes | None = None
        self._shell: bashkit.Bash | None = None
        self.fill(())

    def run(self, command: str, *, stdin: bytes = b"") -> Completed:
        """Run a command, as `Sandbox.run`."""
        self.check_size("stdin", stdin)
        with self._lock:
            shell = self._awake()
            # A shell of its own: variables and the working folder end with the command.
            line = f"cd {FOLDER} && bash -c {shlex.quote('RANDOM=1; ' + command)}"
            if stdin:
                shell.fs().write_file(_STDIN, stdin)
                line += f" < {_STDIN}"
            started = time.monotonic()
            done = shell.execute_sync(line)
            timed_out = done.error is not None and time.monotonic() - started >= self.timeout_s
            if stdin:
                shell.fs().remove(_STDIN)
        return Completed(
            TIMED_OUT if timed_out else done.exit_code,
            _shown(done.stdout.encode()),
            _shown(done.stderr.encode()),
            timed_out,
        )

    def entries(self) -> list[Entry]:
        """Return everything in the folder, as `Sandbox.entries`."""
        with self._lock:
            return counted(_walk(self._awake().fs(), ""))

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start anew with these files."""
        given = self.checked(entries)
        with self._lock:
            self._closed_is_an_error()
            self._shell, self._state = bashkit.Bash(**self._options), None
            files = self._shell.fs()
            if not files.exists(str(FOLDER)):
                files.mkdir(str(FOLDER), recursive=True)
            for entry in given:
                path = f"{FOLDER}/{entry.path}"
                if stat.S_ISDIR(entry.mode):
                    files.mkdir(path, recursive=True)
                elif isinstance(entry.content, str):
                    files.symlink(entry.content, path)
                else:
                    files.write_file(path, entry.content or b"")
                if not stat.S_ISLNK(entry.mode):
                    files.chmod(path, stat.S_IMODE(entry.mode))
        _awake.use(self)

    def missing(self, programs: Iterable[str]) -> list[str]:
        """Return the programs that this sandbox does not have, or only by their name."""
        names = list(dict.fromkeys(programs))
        absent = {*super().missing(names), *_OF_ITS_OWN}
        return [name for name in names if name in absent]

    def close(self) -> None:
        """End the sandbox, and delete its files. A second call does nothing."""
        with self._lock:
            self._closed, self._shell, self._state = True, None, None

    def sleep(self) -> bool:
        """Replace the live shell by its saved state, and return True, unless a command runs."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._shell is not None:
                self._state = self._shell.snapshot()
                self._shell = None
            return True
        finally:
            self._lock.release()

    def _awake(self) -> bashkit.Bash:
        self._closed_is_an_error()
        if self._shell is None:
            assert self._state is not None
            self._shell, self._state = bashkit.Bash.from_snapshot(self._state, **self._options), None
        _awake.use(self)
        return self._shell

    def _closed_is_an_error(self) -> None:
        if self._closed:
            raise SandboxFailed("the sandbox is closed")


def _shown(output: bytes) -> str:
    return shown(output) + ("\n[... what follows is left out ...]\n" if len(output) >= _MAX_KEPT else "")


def _walk(files: bashkit.FileSystem, inside: str) -> Iterator[Entry]:
    for each in files.read_dir(f"{FOLDER}/{inside}" if inside else str(FOLDER)):
        path = f"{inside}/{each['name']}" if inside else each["name"]
        place, about = f"{FOLDER}/{path}", each["metadata"]
        mode = _TYPES.get(about["file_type"], 0) | stat.S_IMODE(about["mode"])
        if stat.S_ISREG(mode):
            yield Entry(path, mode, files.read_file(place))
        elif stat.S_ISLNK(mode):
            yield Entry(path, mode, files.read_link(place))
        else:
            yield Entry(path, mode)
        if stat.S_ISDIR(mode):
            yield from _walk(files, path)


def _most_awake() -> int:
    if sys.platform == "win32":
        return MAX_AWAKE
    import resource  # not on Windows

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # each time, because a server raises it
    return MAX_AWAKE if files == resource.RLIM_INFINITY else min(MAX_AWAKE, files // 6)


class _Awake:
    """The sandboxes of this process that have a live shell, the least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: dict[int, weakref.ref[InProcessSandbox]] = {}

    def use(self, sandbox: InProcessSandbox) -> None:
        """Note a use. Put others to sleep while there are too many."""
        with self._lock:
            self._order.pop(id(sandbox), None)
            self._order[id(sandbox)] = weakref.ref(sandbox)
            extra = list(self._order.items())[: max(len(self._order) - _most_awake(), 0)]
        for key, reference in extra:
            found = reference()
            if found is None or found.sleep():
                with self._lock:
                    if self._order.get(key) is reference:
                        del self._order[key]


_awake = _Awake()
