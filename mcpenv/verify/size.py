"""Size: how much of a world a verifier looks at. An agent may have made the world as large as it could."""

from __future__ import annotations

from typing import Any

from ..errors import VerifierFailed

MAX_WORLD = 64 << 20
"""Bytes, roughly, of the world before and after together."""
MAX_DEPTH = 150
"""Objects and lists inside each other; JSON readers stop at 200, and the evidence is some levels deep itself."""

_EACH = 16


def refuse_huge(*trees: Any) -> None:
    """Refuse worlds that nobody can verify in reasonable time and memory.

    A walk in Python, which gives the event loop its turn; it stops as soon as it is too much.

    Raises:
        VerifierFailed: too large, or nested too deeply.
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
