"""How an exception becomes a failure: by its type and by whose code raised it, never by its text.

What an agent may read is the tool's own message: a `ToolError`'s text as it is; of another exception its text if the
tool's own code raised it, without file paths; otherwise only its type. All but a `ToolError` name an incident, under
which the traceback stands in the log.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fastmcp.exceptions import ToolError

from mcpenv_client.errors import ExecutionError, FactoryError, WireError
from mcpenv_client.tools import ToolErrorType, ToolFailure

logger = logging.getLogger("mcpenv")

_PATH = re.compile(r"(?<![\w:/.])(?:[A-Za-z]:)?(?:[\\/][^\s\\/'\",;:()<>]+){2,}[\\/]?")


def new_incident() -> str:
    """An id that ties what a client reads to a traceback in the log."""
    return secrets.token_hex(4)


def execution_failure(name: str, error: BaseException, fn: Callable[..., Any] | None) -> ToolFailure:
    """The failure of a tool that raised ``error``; logs the traceback of what the agent may not read."""
    if isinstance(error, ToolError):
        return ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=str(error) or "The tool failed.")
    incident = new_incident()
    logger.error("incident %s: tool %r raised %s", incident, name, type(error).__name__, exc_info=error)
    said = _own_words(error, fn)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=f"{text} (incident {incident})")


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


def _own_words(error: BaseException, fn: Callable[..., Any] | None) -> str:
    """The exception's text if the tool's own code raised it, without file paths; else an empty string."""
    if isinstance(error, OSError):
        return error.strerror or ""
    home = _folder_of(fn)
    if home is None or not _raised_in(error.__traceback__, home):
        return ""
    return _PATH.sub("<path>", " ".join(str(error).split()))[:2000]


def _folder_of(fn: Callable[..., Any] | None) -> str | None:
    while fn is not None and not hasattr(fn, "__code__"):
        fn = getattr(fn, "__wrapped__", None) or getattr(fn, "func", None) or type(fn).__dict__.get("__call__")
    return None if fn is None else os.path.dirname(fn.__code__.co_filename)


def _raised_in(traceback: TracebackType | None, folder: str) -> bool:
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return os.path.dirname(traceback.tb_frame.f_code.co_filename) == folder
