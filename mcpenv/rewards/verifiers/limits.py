"""Limit the size of a world that a verifier reads, because an agent can make a world arbitrarily large."""

from __future__ import annotations

from typing import Any

from mcpenv.errors import VerifierFailed

MAX_WORLD = 64 << 20
"""Maximum bytes, roughly, of the world before and after together."""
MAX_DEPTH = 150
"""Maximum depth of nested objects and lists. JSON readers stop at 200, and the evidence adds some levels."""

_EACH = 16


def refuse_huge(*trees: Any) -> None:
    """Raise if worlds are too large to be verified in reasonable time and memory.

    The walk is in Python, so that other threads can run. It stops as soon as a limit is exceeded.

    Raises:
        VerifierFailed: if a world is too large, or nested too deeply.
    """
    size = 0
    left = [(tree, 0) for tree in trees]
    while left:
        value, depth = left.pop()
        size += _EACH
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise VerifierFailed(f"the world is nested more than {MAX_DEPTH} levels deep")
            if isinstance(value, dict):
                size += sum(map(len, value))
                left += [(each, depth + 1) for each in value.values()]
            else:
                left += [(each, depth + 1) for each in value]
        if size + _EACH * len(left) > MAX_WORLD:
            raise VerifierFailed(f"the world is too large to be verified: more than {MAX_WORLD >> 20} MiB")
