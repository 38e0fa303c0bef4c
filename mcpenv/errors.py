"""Errors of authors and operators. Errors that cross the wire are in `mcpenv_client.errors`.

McpenvError (mcpenv_client)
├── StartupError          mcpenv refuses to start: one line for the operator, exit status 2
│   ├── TargetError       TARGET names no environment, or its code does not load
│   └── ConfigurationError  an unknown mode, more sessions than the environment allows, a host that is not loopback
├── InvalidTasks          a task set cannot be read: a bad row, a duplicate id, a missing file
├── InvalidRubric         a saved rubric cannot be restored: an unknown name, arguments that do not fit
├── DamagedRecord         a record cannot be read; an unfinished episode at the end of a file is not an error
├── EndpointFailed        a chat completions endpoint refused, or gave no answer that can be used
├── JudgeFailed           a judge gave no well-formed answer, or its budget is used up
├── UserFailed            the simulated user of an environment gave no answer; the episode has no score
├── InvalidVerifier       a verifier of a task cannot be used: an unknown kind, an invalid pattern
├── VerifierFailed        a verifier gave no result: a limit, a crash, not a number; there is no score
├── WorldUnreadable       a world cannot be captured because of its content: damage, a size limit, no JSON form
├── InvalidTool           a tool cannot be registered: a reserved name, a bad signature, an unknown mode
└── Misuse                a method was called where it has no meaning, such as finish() outside a step

`describe` and `place_of` show an exception of user code, as text and by its place in the user's files.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mcpenv_client.errors import McpenvError

if TYPE_CHECKING:
    from mcpenv_client.types.users import UserTurn

TARGET_FOLDERS: set[Path] = set()
"""The folders with the code of the targets that this process has loaded, or tried to load."""


class StartupError(McpenvError):
    """Raised if a command or server is refused before it starts. The text is one line for the operator."""

    exit_status = 2


class TargetError(StartupError):
    """Raised if the target names no environment, or its code does not load (``__cause__`` has the traceback)."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.target}: {self.reason}"


class ConfigurationError(StartupError):
    """Raised if a setting cannot be used."""


class InvalidTool(McpenvError, ValueError):
    """Raised if a tool cannot be registered."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"tool {self.name!r}: {self.reason}"


class InvalidTasks(McpenvError, ValueError):
    """Raised if a task set cannot be read.

    Attributes:
        place: the file and its line or row.
        field: the task's invalid field; empty if the row or the file is invalid.
    """

    def __init__(self, place: str, reason: str, field: str = "") -> None:
        super().__init__(place, reason, field)
        self.place = place
        self.reason = reason
        self.field = field

    def __str__(self) -> str:
        return f"{self.place}: {self.field}: {self.reason}" if self.field else f"{self.place}: {self.reason}"


class _InvalidAt(McpenvError, ValueError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class InvalidRubric(_InvalidAt):
    """Raised if a saved rubric cannot be restored; ``path`` names the place in its configuration."""


class DamagedRecord(McpenvError, ValueError):
    """Raised if a record of episodes cannot be read; ``place`` names the file and the place in it, if known."""

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason, place)
        self.reason = reason
        self.place = place

    def __str__(self) -> str:
        return self.reason if self.place is None else f"{self.place}: {self.reason}"


class EndpointFailed(McpenvError, RuntimeError):
    """Raised if a chat completions endpoint refused, or gave no answer that can be used.

    Attributes:
        reason: the cause, without text of the endpoint.
        message: the endpoint's own error message, if it gave one.
        status: the HTTP status of the refusal; None if the endpoint did not refuse.
    """

    def __init__(self, reason: str, message: str | None = None, status: int | None = None) -> None:
        super().__init__(reason, message, status)
        self.reason = reason
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return self.reason if self.message is None else f"{self.reason}: {self.message}"


class JudgeFailed(McpenvError, RuntimeError):
    """Raised if a judge gave no well-formed answer, or its budget is used up. There is no score."""


class UserFailed(McpenvError, RuntimeError):
    """Raised if the simulated user of an environment gave no answer. The episode has no score.

    Attributes:
        reason: the cause.
        turn: the actions and the spending of the user until then, for the record.
    """

    def __init__(self, reason: str, turn: UserTurn) -> None:
        super().__init__(reason, turn)
        self.reason = reason
        self.turn = turn

    def __str__(self) -> str:
        return self.reason


class InvalidVerifier(_InvalidAt):
    """Raised if a verifier of a task cannot be used; ``path`` names the place in it."""


class VerifierFailed(McpenvError, RuntimeError):
    """Raised if a verifier gave no result: it exceeded a limit, crashed, or returned no number. There is no score."""


class WorldUnreadable(McpenvError, RuntimeError):
    """Raised if a world cannot be captured because of its content: damage, a size limit, a value without a JSON form.

    At the end of an episode its agent has caused it, so that the end is worth the bottom of the task's range.
    """


class Misuse(McpenvError, RuntimeError):
    """Raised if a method was called where it has no meaning. The text names the alternative."""


# -- exceptions of user code


def meant(name: str, known: Iterable[str], rest: str = "") -> str:
    """Return the end of a message about an unknown name, which ``rest`` follows: ``. Did you mean 'x'?``, or ""."""
    near = difflib.get_close_matches(name[:100], [*islice(known, 1000)], n=1)
    return f". Did you mean {near[0] + rest!r}?" if near else ""


def describe(error: BaseException, folder: Path | None = None) -> str:
    """Return an exception of user code as one line: its type, its text, and its place in the user's files.

    Args:
        error: the exception.
        folder: the folder of the user's files; None for all files that belong to no installed package.
    """
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made is still an exception
        text = ""
    message = " ".join(text.split())
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = place_of(error, folder)
    return f"{line} ({where})" if where else line


def place_of(error: BaseException, folder: Path | None = None) -> str | None:
    """Return ``file:line`` of a syntax error, or of the last frame in the user's files; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}:{error.lineno}"
    found = None
    for file, line in _frames(error):
        if folder is None:
            is_users = not any(map(file.is_relative_to, _installed()))
        else:
            is_users = file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts
        if is_users and not any(map(file.is_relative_to, _own())):
            found = f"{_shown(file)}:{line}"
    return found


def place_in_target(error: BaseException) -> str | None:
    """Return ``file:line`` of the last frame of an exception in the code of a target; None if there is none."""
    found = (place_of(error, folder) for folder in TARGET_FOLDERS if folder.name != "site-packages")
    return next(filter(None, found), None)


def _frames(error: BaseException) -> Iterator[tuple[Path, int]]:
    traceback = error.__traceback__
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file.is_absolute():  # others are made up, such as "<string>"
            yield file, traceback.tb_lineno
        traceback = traceback.tb_next


@functools.cache
def _own() -> tuple[Path, ...]:
    """Return the folders of mcpenv and its client."""
    specs = map(importlib.util.find_spec, ("mcpenv", "mcpenv_client"))
    return tuple(Path(spec.origin).parent for spec in specs if spec is not None and spec.origin)


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Return the folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
