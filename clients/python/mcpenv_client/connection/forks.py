"""The number of forks between the process that imported this module and the current one."""

from __future__ import annotations

import itertools
import os

LOST = "the session belongs to the process that this one was forked from"
"""The error text for a connection that was made before a fork."""

_numbers = itertools.count(1)
_here = 0


def number() -> int:
    """Return how many times this process was forked since the import. The process id would cost a system call."""
    return _here


def _forked() -> None:
    global _here
    _here = next(_numbers)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
