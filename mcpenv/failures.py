"""How an exception becomes a failure: by its type, never by its text.

What an agent may read is the tool's own message. A `ToolError` is meant for it and passes as it is. Of any other
exception the text passes in simulation, without file paths; in production only its incident, under which the traceback
stands in the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets

from fastmcp.exceptions import ToolError

from mcpenv_client.errors import ExecutionError, FactoryError, McpenvError, NotSerializable, WireError
from mcpenv_client.tools import Mode, ToolErrorType, ToolFailure

logger = logging.getLogger("mcpenv")

MAX_MESSAGE = 2000
"""Characters of an exception's text that a client may read."""

_PATH = re.compile(
    r"""
      (?P<quote>['"`]) (?:~|[A-Za-z]:)? [\\/] [^'"`\n]* [\\/] [^'"`\n]* (?P=quote)   # in quotes, blanks and all
    | file:/+ \S+                                                                   # as a URL of this machine
    | ~ (?: / [^\s/'",;:()<>]+ )+ /?                                                # under a home
    | \\\\ [^\s\\'",;()<>]+ (?: \\ [^\s\\'",;()<>]+ )+                               # on another machine
    | (?<![\w/.]) (?:[A-Za-z]:)? (?: [\\/] [^\s\\/'",;:()<>]+ ){2,} [\\/]?           # of two parts or more
    """,
    re.VERBOSE,
)


def is_no_failure(error: BaseException, *, inline: bool) -> bool:
    """Whether an exception that comes out of the author's code is none of its failures, and goes on to the caller.

    Somebody cancels the task; or, with ``inline`` (the code runs in the caller's thread), Ctrl-C was pressed, or the
    coroutine is being thrown away. Anywhere else a `KeyboardInterrupt` is the author's, and would end the server with
    all of its sessions; and a `CancelledError` that nobody asked this task for is that of something the author awaited.
    """
    if inline:
        return isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit)
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def new_incident() -> str:
    """An id that ties what a client reads to a traceback in the log."""
    return secrets.token_hex(4)


class SortedFailure(ToolError):
    """The failure of a tool that runs elsewhere, where its kind is known."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def execution_failure(name: str, error: BaseException, mode: Mode) -> ToolFailure:
    """The failure of a tool that raised ``error``; logs the traceback of all but a `ToolError`."""
    if isinstance(error, SortedFailure):
        return error.failure
    if isinstance(error, ToolError):
        return ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=_text_of(error) or "The tool failed.")
    incident = new_incident()
    logger.error("incident %s: tool %r raised %s", incident, name, type(error).__name__, exc_info=error)
    said = "The tool failed" if mode is Mode.PRODUCTION else own_words(error)
    return ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=f"{said} (incident {incident})")


def unusable_result(name: str, reason: str) -> ToolFailure:
    """The failure of a tool whose return value has no JSON form."""
    logger.error("tool %r returned a value without a JSON form: %s", name, reason)
    return ToolFailure(
        error_type=ToolErrorType.EXECUTION_ERROR, message=f"The tool returned a value that has no JSON form: {reason}"
    )


def environment_failure(stage: str, error: BaseException) -> WireError:
    """The wire error for an exception in the author's ``reset``, ``score``, ``state``, ``close`` or own action.

    A `WireError` that the framework raised in there (a nested refusal) passes unchanged.
    """
    if isinstance(error, WireError):
        return error
    incident = new_incident()
    logger.error("incident %s: %s raised %s", incident, stage, type(error).__name__, exc_info=error)
    return ExecutionError(
        f"the environment's {stage} raised {type(error).__name__} (incident {incident})", incident=incident, stage=stage
    )


def factory_failure(name: str, error: BaseException) -> WireError:
    """The wire error for an exception in an environment's constructor."""
    if isinstance(error, WireError):
        return error
    incident = new_incident()
    logger.error("incident %s: making %s raised %s", incident, name, type(error).__name__, exc_info=error)
    return FactoryError(
        f"the environment could not be made: {type(error).__name__} (incident {incident})", incident=incident
    )


def wire_error(error: Exception, what: str) -> WireError:
    """What an orchestrator may know of an error; the log has the rest.

    Args:
        what: could not be answered.
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
    """The type and the text of an exception, without file paths."""
    # The text of an OSError names the file; strerror says only what is wrong with it.
    text = error.strerror or "" if isinstance(error, OSError) else _text_of(error)
    said = _PATH.sub("<path>", " ".join(text.split()))[:MAX_MESSAGE]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made is still an exception
        return ""
