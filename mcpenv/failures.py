"""Convert exceptions to failures, by their type, never by their text.

The text of a `ToolError` is meant for the agent and passes unchanged. The text of any other exception passes in
simulation without file paths, and in production not at all. Its incident id names the traceback in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from fastmcp.exceptions import ToolError
from pydantic import ValidationError

from mcpenv.errors import JudgeFailed, VerifierFailed, describe, meant
from mcpenv.redaction import without_known
from mcpenv_client.errors import (
    ExecutionError,
    FactoryError,
    McpenvError,
    NotSerializable,
    OperationTimeout,
    WireError,
)
from mcpenv_client.formats.references import fields_at
from mcpenv_client.types.records import MISSED, status_of_failure
from mcpenv_client.types.status import TOOL_RAISED, Stage, Status, StatusCode
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure
from mcpenv_client.wire.faults import describe_faults, place_of

logger = logging.getLogger("mcpenv")

MAX_MESSAGE = 2000
"""Maximum characters of an exception's text that a client may read."""

MAX_SHOWN_NAME = 200
"""Maximum characters of an unknown tool's name in a message."""

NAMED = 20
"""Maximum tools that the refusal of an unknown tool names, or parameters that the refusal of an argument names."""

_UNKNOWN = frozenset({"unexpected_keyword_argument", "extra_forbidden"})
"""The types of pydantic's errors for names that do not exist."""

_PATH = re.compile(
    r"""
      (?P<quote>['"`]) (?:~|[A-Za-z]:)? [\\/] [^\\/'"`\n]* [\\/] [^'"`\n]* (?P=quote)   # in quotes, also with spaces
    | file:/+ \S+                                                                   # as a URL of this machine
    | ~ (?: / [^\s/'",;:()<>]+ )+ /?                                                # below a home folder
    | \\\\ [^\s\\'",;()<>]+ (?: \\ [^\s\\'",;()<>]+ )+                               # on another machine
    | (?<![\w/.]) (?:[A-Za-z]:)? (?: [\\/] [^\s\\/'",;:()<>]+ ){2,} [\\/]?           # of two parts or more
    """,
    re.VERBOSE,
)

_MISUSES = frozenset({("sqlite3", "ProgrammingError"), ("greenlet", "error")})
"""The exceptions, by module and name, that SQLite and greenlet (sync Playwright) raise for use in another thread.

They raise them for other misuse too. Nothing but the text tells these apart, so that the remedy names its condition.
"""

_OF_DATA = (ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, SyntaxError, TypeError)
_OF_READERS = re.compile(r"(_csv|_lzma|_?pickle|gzip|io|shutil|struct|subprocess|tarfile|xml|yaml|zipfile|zlib)\b")
"""The modules whose exceptions come from the files that they read, or from a program that they ran."""
_OF_MACHINE = {"EAGAIN", "EDQUOT", "EHOSTUNREACH", "EIO", "EMFILE", "ENETUNREACH", "ENFILE", "ENOMEM", "ENOSPC"}
_OF_SQLITE_MACHINE = {getattr(sqlite3, f"SQLITE_{name}") for name in ("BUSY", "LOCKED", "NOMEM", "IOERR", "FULL")}

AFFINITY = (
    "If it was made in another thread, set THREAD_AFFINE = True in the environment's class, so that all of its sync "
    "code runs in one thread (async code runs on the event loop)"
)
"""The remedy for an object that user code may use in one thread only."""

_OF_SQLITE = "A SQLite connection can instead be opened with check_same_thread=False"
"""The second remedy if the object belongs to SQLite: the sync calls of an instance run one at a time."""


def may_be_of_state(error: BaseException) -> bool:
    """Return True if data, files or tables may cause an exception, not an outage, a lock or a full or broken disk."""
    reads = _OF_READERS.match(type(error).__module__) is not None
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF not in _OF_SQLITE_MACHINE
    if not isinstance(error, OSError):
        return reads or isinstance(error, (*_OF_DATA, RecursionError, ValueError))
    # The errors of networks are these two, or classes of other modules.
    local = type(error).__module__ == "builtins" and not isinstance(error, ConnectionError | TimeoutError)
    return (reads or local) and errno.errorcode.get(error.errno or 0) not in _OF_MACHINE


def is_no_failure(error: BaseException, *, inline: bool) -> bool:
    """Return True if an exception that user code raised is no failure of that code, and must propagate to the caller.

    The cancellation of the current task propagates. With ``inline`` (user code runs in the caller's thread), any
    `CancelledError`, Ctrl-C and the closing of the coroutine propagate. Without it, a `KeyboardInterrupt` comes from
    user code, and would end the server with all its sessions. A `CancelledError` in a task that is not being cancelled
    comes from an awaitable of user code.
    """
    if inline:
        return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit)
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def new_incident() -> str:
    """Return a random id that links a client's error message to the traceback in the log."""
    return secrets.token_hex(4)


class SortedFailure(ToolError):
    """The failure of a tool that runs in another process and is classified there."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class UnexpectedFailure(ToolFailure):
    """The failure of a tool through an error in its own code, not in the agent's call. The same on the wire."""


class LostFailure(ToolFailure):
    """The failure of a call that lost the server behind the environment. The same on the wire."""


class MissedFailure(ToolFailure):
    """The failure of a call that a cassette does not have. The same on the wire."""


def step_status(failure: ToolFailure) -> Status:
    """Return the status of a step in which the tool failed."""
    if isinstance(failure, MissedFailure):
        return MISSED
    if isinstance(failure, LostFailure):
        return Status(StatusCode.TRANSPORT_LOST, Stage.TOOL, True)
    return TOOL_RAISED if isinstance(failure, UnexpectedFailure) else status_of_failure(failure)


_STAGES = {
    "reset": Stage.RESET,
    "tasks": Stage.RESET,
    "load_state": Stage.RESET,
    "act": Stage.TOOL,
    "user": Stage.TOOL,
    "score": Stage.SCORE,
    "finish": Stage.SCORE,
    "rubric": Stage.SCORE,
    "verify": Stage.VERIFY,
    "close": Stage.CLOSE,
}
"""The stages of a status, by the name of the user code that failed. Other user code (`state`) has no stage."""

_JUDGES = frozenset({"rubric", "verify"})


def stage_status(name: str, error: BaseException | None = None, limit: str | None = None) -> Status:
    """Return the status of a step or operation that failed in the user code of this name.

    Args:
        error: the exception that the code raised. `JudgeFailed` and `VerifierFailed` are always failures of a judge.
        limit: the limit that the code passed.
    """
    judged = name in _JUDGES or isinstance(error, JudgeFailed | VerifierFailed)
    return Status(StatusCode.JUDGE_ERROR if judged else StatusCode.ENV_ERROR, _STAGES.get(name), True, limit)


def execution_failure(name: str, error: BaseException, mode: Mode, shown: str | None = None) -> ToolFailure:
    """Return the failure of a tool that raised ``error``; log the traceback unless it is a `ToolError`.

    Args:
        shown: the text for agents that a mounted server made of the error; None if there is none.
    """
    if isinstance(error, SortedFailure):
        return error.failure
    if isinstance(error, ToolError):
        return ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=_text_of(error) or "The tool failed.")
    _advise(error)
    incident = new_incident()
    logger.error("incident %s: tool %r raised %s", incident, name, type(error).__name__, exc_info=error)
    if mode is Mode.PRODUCTION:
        message = "The tool failed"
    else:
        message = own_words(error) if shown is None else _without_paths(shown, error)
    return UnexpectedFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=f"{message} (incident {incident})")


def _advise(error: BaseException) -> None:
    """Add a note with the remedy to an error that may come from an object of another thread.

    An error with a code of SQLite comes from the database, which was reached.
    """
    kind = type(error)
    misused = (kind.__module__, kind.__name__) in _MISUSES and not hasattr(error, "sqlite_errorcode")
    if misused and AFFINITY not in getattr(error, "__notes__", ()):
        error.add_note(AFFINITY)
        if kind.__module__ == "sqlite3":
            error.add_note(_OF_SQLITE)


def unknown_tool(name: str, existing: Sequence[str]) -> ToolFailure:
    """Return the failure for a tool that does not exist in this mode.

    Args:
        existing: the names of the tools that the caller may use. The message has the first `NAMED`.
    """
    message = f"Unknown tool: {name[:MAX_SHOWN_NAME]!r}. The tools are: {_listed(existing)}{meant(name, existing)}"
    return ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=message)


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (", ".join(names[:NAMED]) or "none") + more


def invalid_arguments(
    name: str, problem: str, errors: list[dict[str, Any]] | None, schema: Mapping[str, Any]
) -> ToolFailure:
    """Return the failure for arguments that a tool refuses. It names those that exist if some are unknown.

    Args:
        problem: the text of the errors.
        errors: pydantic's errors as plain data; None if only the text is known.
        schema: the input schema of the tool. The message has the first `NAMED` properties of an object.
    """
    told: set[tuple[str, ...]] = set()
    for *place, unknown in [each["loc"] for each in errors or () if each.get("type") in _UNKNOWN and each["loc"]]:
        known = tuple(fields_at(schema, place))
        if known not in told and (known or not place):
            told.add(known)
            whose = f"fields of {place_of(place)}" if place else "parameters"
            problem += f"{meant(str(unknown), known) or '.'} The {whose} are: {_listed(known)}"
    message = f"{name}: invalid arguments: {problem}"
    return ToolFailure(error_type=ToolErrorType.INVALID_ARGS, message=message, errors=errors)


def unusable_result(name: str, reason: str) -> ToolFailure:
    """Log and return the failure for a return value that has no JSON form, or does not fit its output schema."""
    message = f"The result of {name!r} cannot be used: {reason}"
    logger.error(message)
    return UnexpectedFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message)


def environment_failure(stage: str, error: BaseException) -> WireError:
    """Return the wire error for an exception in user code: ``reset``, ``score``, ``user``, ``close``, ...

    The traceback is logged. A `WireError` that the framework raised inside (a nested refusal) is returned unchanged.
    In process, a traceback of the error ends with the exception's text, file and line, which the wire does not carry.
    """
    if isinstance(error, WireError):
        return error
    _advise(error)
    incident = new_incident()
    logger.error("incident %s: %s raised %s", incident, stage, type(error).__name__, exc_info=error)
    failure = ExecutionError(
        f"the environment's {stage} raised {type(error).__name__} (incident {incident})",
        incident=incident,
        stage=stage,
        status=stage_status(stage, error).to_plain(),
    )
    failure.add_note(describe(error))
    return failure


def stage_timeout(stage: str, limit_s: float | None) -> OperationTimeout:
    """Return the wire error for user code that passed its deadline."""
    status = stage_status(stage, limit="timeout")
    return OperationTimeout(f"the environment's {stage} took longer than {limit_s:g} s", status=status.to_plain())


def factory_failure(name: str, error: BaseException) -> WireError:
    """Return the wire error for an exception in an environment's constructor; log the traceback."""
    if isinstance(error, WireError):
        return error
    incident = new_incident()
    logger.error("incident %s: making %s raised %s", incident, name, type(error).__name__, exc_info=error)
    return FactoryError(
        f"the environment could not be made: {type(error).__name__} (incident {incident})", incident=incident
    )


def wire_error(error: Exception, what: str) -> WireError:
    """Return the wire error that an orchestrator may read for ``error``; log the details.

    Args:
        what: the request that failed, for the log.
    """
    if isinstance(error, WireError):
        return error
    if isinstance(error, NotSerializable):
        logger.error("a reply has no JSON form: %s", error)
        return ExecutionError(f"the reply has no JSON form: {error}")
    if isinstance(error, McpenvError):
        return ExecutionError(str(error))
    incident = new_incident()
    logger.error("incident %s: %s could not be answered", incident, what, exc_info=error)
    return ExecutionError(f"internal error (incident {incident})", incident=incident)


def own_words(error: BaseException) -> str:
    """Return the type and the text of an exception, or of the only one in a group, without file paths."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    # The text of an OSError names the file; strerror does not.
    text = error.strerror or "" if isinstance(error, OSError) else _text_of(error)
    message = _without_paths(text)
    notes = getattr(error, "__notes__", ())
    message += "".join(f". {remedy}" for remedy in (AFFINITY, _OF_SQLITE) if remedy in notes)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _without_paths(text: str, error: BaseException | None = None) -> str:
    """Return the text on one line, without file paths and without the names of files that ``error`` is about.

    Where the text repeats an error of pydantic's, it has the shorter text of that error, without the input.
    """
    if isinstance(error, ValidationError):
        text = text.replace(str(error), _text_of(error))
    if isinstance(error, OSError):
        for file in (error.filename, error.filename2):
            text = text if file is None else text.replace(repr(file), "<path>")
    text = without_known(text)[: MAX_MESSAGE * 16]  # an agent's arguments of megabytes may be in it
    return _PATH.sub("<path>", " ".join(text.split()))[:MAX_MESSAGE]


def _text_of(error: BaseException) -> str:
    try:
        return without_known(describe_faults(error) if isinstance(error, ValidationError) else str(error))
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made is still an exception
        return ""
