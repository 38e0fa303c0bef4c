"""Failures of a command: one line on stderr and, with ``--json``, one JSON object on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcpenv_client.errors import WireError

from .output import report

USAGE = "UsageError"
"""The ``type`` of a command line that cannot be parsed."""


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return True if a command line has ``--json``, even if it cannot be parsed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(option == "--json" or option.startswith("--json=") for option in options)


class Failures:
    """The reporter of a command's failure.

    Args:
        as_json: True to print it on stdout as well.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def print(self, message: str, kind: str | Exception, exit_status: int) -> int:
        """Print a failure and return the exit status.

        Args:
            kind: the error, or the ``type`` that stands for it.
        """
        report(message)
        if self._as_json:
            wire = kind.to_wire() if isinstance(kind, WireError) else {}
            error = {
                **wire,
                "type": kind if isinstance(kind, str) else type(kind).__name__,
                "message": " ".join(message.split()),
                "exit_status": exit_status,
            }
            # On one line, because a command may have printed lines of JSON before. In ASCII, because the stream escapes
            # characters that its encoding lacks, which would not be JSON.
            print(json.dumps({"error": error}, default=str), flush=True)
        return exit_status
