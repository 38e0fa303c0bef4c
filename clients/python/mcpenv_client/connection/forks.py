"""Whether this process is a fork of that in which something was made."""

from __future__ import annotations

import itertools
import os

LOST = "the session belongs to the process that this one was forked from"
"""Why a connection that was made before the fork is of no use."""

_numbers = itertools.count(1)
_here = 0


def number() -> int:
    """How often this process is a fork of that which imported this; to ask the system for its id costs a call of it."""
    return _here


def _forked() -> None:
    global _here
    _here = next(_numbers)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
