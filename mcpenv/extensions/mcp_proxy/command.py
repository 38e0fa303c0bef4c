"""The command of a server, resolved once, so that each start runs the same program and nothing else."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("mcpenv.upstream")

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""The variables of this process that a server's process gets. The server's ``env`` names any others."""

LAUNCHERS = frozenset({"uvx", "npx", "bunx", "pipx", "uv", "npm"})
"""Programs that find or install another one, and run it. They start more slowly than most servers."""

_FOR_LAUNCHERS = re.compile(
    r"(?i)(uv|pip|pipx|npm|node|xdg|ssl)_\w+|(https?|all|no)_proxy|(curl|requests)_ca_bundle|node_extra_ca_certs"
)
"""Variables by which launchers find their registry, caches and certificates.

The server itself does not get these variables.
"""

_SHELL_TRICK = re.compile(r"""'''exec' ["']?(?P<python>[^"']+?)["']? "\$0" """)
"""The second line of a console script if the path of its interpreter is too long for the first line."""


@dataclass(frozen=True)
class Command:
    """A program, and the arguments for it, which may name the workspace.

    Attributes:
        program: the words that name the program, absolute.
        arguments: the words after these, as they are configured.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]

    @classmethod
    def find(cls, command: str, arguments: Sequence[str]) -> Command:
        """Return the command of a server.

        Raises:
            FileNotFoundError: there is no such program.
        """
        found = shutil.which(command)
        if found is None:
            raise FileNotFoundError(f"there is no program {command!r}{_hint(command, arguments)}")
        return cls((os.path.abspath(found),), tuple(arguments))

    def check(self) -> None:
        """Raise if the program no longer exists.

        Raises:
            FileNotFoundError: the program does not exist.
        """
        if not Path(self.program[0]).exists():
            raise FileNotFoundError(f"there is no program {self.program[0]!r}")

    @property
    def launches(self) -> bool:
        """True if the program finds another one at each start."""
        return Path(self.program[0]).name in LAUNCHERS

    def variables(self) -> dict[str, str]:
        """Return the variables of this process that the command gets."""
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if self.launches:
            passed |= {name: value for name, value in os.environ.items() if _FOR_LAUNCHERS.fullmatch(name)}
        return passed

    def pinned(self, launcher: int, arguments: Sequence[str]) -> Command | None:
        """Return the command that a running launcher has started; None if it cannot be determined.

        Args:
            launcher: the id of its process.
            arguments: the arguments that it was started with.
        """
        try:
            server = _server_behind(launcher)
            words = _words_of(server)
            if server == launcher and (self.program[0] in words or not os.path.isabs(words[0])):
                return None  # it has not replaced itself by the server, as some launchers do
            if not os.path.isabs(words[0]):
                words[0] = os.readlink(f"/proc/{server}/exe")
        except OSError as error:
            logger.debug("the program behind %s is not known: %s", self.program[0], error)
            return None
        own = 0
        while own < min(len(arguments), len(words)) and words[-1 - own] == arguments[-1 - own]:
            own += 1
        program = words[: len(words) - own]
        if not program or not os.access(program[0], os.X_OK) or Path(program[0]).name in LAUNCHERS:
            return None
        return Command(tuple(program), self.arguments[len(self.arguments) - own :])

    def python(self) -> PythonProgram | None:
        """Return the Python program that the command runs; None if it runs no Python."""
        first, *rest = self.program
        arguments = [*rest, *self.arguments]
        if _is_python(first):
            if arguments[:1] == ["-m"] and len(arguments) > 1:
                return PythonProgram(first, "module", arguments[1], tuple(arguments[2:]))
            if arguments and not arguments[0].startswith("-"):
                return PythonProgram(first, "script", os.path.abspath(arguments[0]), tuple(arguments[1:]))
            return None
        interpreter = interpreter_of(first)
        return None if interpreter is None else PythonProgram(interpreter, "script", first, tuple(arguments))


@dataclass(frozen=True)
class PythonProgram:
    """A program that a Python interpreter runs.

    Attributes:
        interpreter: the path of the interpreter.
        kind: "module" for ``-m``, or "script".
        target: the name of the module, or the path of the script.
        arguments: the arguments for it.
    """

    interpreter: str
    kind: str
    target: str
    arguments: tuple[str, ...]


def _hint(command: str, arguments: Sequence[str]) -> str:
    """Return what to write instead of a command that a host would start by a shell; empty if nothing is known."""
    if Path(command).stem.lower() == "cmd" and len(arguments) > 1 and arguments[0].lower() == "/c":
        return f"; it is a program of Windows: make {arguments[1]!r} the command, and the words after it its args"
    first, *rest = command.split() or [""]
    return f"; make {first!r} the command, and put the other words into args" if rest and shutil.which(first) else ""


def interpreter_of(program: str) -> str | None:
    """Return the Python interpreter that runs a script; None if the file is not a Python script."""
    with open(program, "rb") as file:
        first, second = (file.readline(4096).decode("utf-8", "replace") for _ in range(2))
    if not first.startswith("#!"):
        return None
    trick = _SHELL_TRICK.match(second)
    words = [trick["python"]] if trick else first[2:].split()
    if words and Path(words[0]).name == "env":
        words = [found for word in words[1:] if (found := shutil.which(word))]
    return words[0] if words and _is_python(words[0]) else None


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name) is not None


def _server_behind(launcher: int) -> int:
    """Return the process that a launcher started: the last of its descendants with the launcher's pipes."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        children.setdefault(parent, []).append(int(entry.name))
    pipes, found = {os.readlink(f"/proc/{launcher}/fd/{number}") for number in (0, 1)}, launcher
    while True:
        same = [child for child in children.get(found, ()) if pipes <= _files_of(child)]
        if len(same) != 1:
            return found
        found = same[0]


def _files_of(process: int) -> set[str]:
    """Return the names of the open files; none if the process has ended or belongs to another user.

    All descriptors count, not only stdin and stdout: the MCP SDK moves the pipes to other descriptors, so that nothing
    else writes messages.
    """
    found = set()
    with suppress(OSError):
        for descriptor in os.listdir(f"/proc/{process}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    return found


def _words_of(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
