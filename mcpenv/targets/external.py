"""Targets of other distributions: ``NAME:REST``, where NAME is an entry point of the group ``mcpenv.targets``.

The entry point is a function that returns an environment class. It takes the rest of the target as its only positional
argument, and settings (``--set name=value``) by name, by the annotations of its parameters.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import StartupError, TargetError

from .settings import bind

ENTRY_POINTS = "mcpenv.targets"
"""The entry-point group under which distributions register targets."""

DISTRIBUTIONS = {"fleet": "mcpenv-fleet"}
"""The distributions of targets that a user may name before installing them. None of them is imported here."""


def names_external(target: str) -> bool:
    """Return True if another distribution resolves the target, or would if it were installed."""
    name, colon, _ = target.partition(":")
    return bool(colon) and (name in DISTRIBUTIONS or _entry_point(name) is not None)


def external_class(target: str, settings: Sequence[str] = ()) -> type[MCPEnvironment]:
    """Return the environment class of a target.

    Args:
        target: as the user wrote it.
        settings: ``name=value`` each, for the function of the entry point.

    Raises:
        TargetError: the distribution is not installed or does not load (``__cause__``), or it refuses the target.
    """
    name, _, rest = target.partition(":")
    entry = _entry_point(name)
    if entry is None:
        raise TargetError(
            target,
            f"targets that begin with {name}: need another package: pip install {DISTRIBUTIONS[name]} "
            f"(for a module of that name, write ./{name}.py:CLASS)",
        )
    try:
        make: Any = entry.load()
    except Exception as error:  # code of another distribution may raise anything
        raise TargetError(target, f"{entry.value} cannot be loaded: {type(error).__name__}: {error}") from error
    bound = bind(target, make, settings)
    try:
        cls = make(rest, **bound)
    except StartupError as error:
        raise TargetError(target, str(error)) from error
    if not (isinstance(cls, type) and issubclass(cls, MCPEnvironment)):
        raise TargetError(target, f"{entry.value} returned {cls!r:.200}, not an environment class")
    return cls


def _entry_point(name: str) -> importlib.metadata.EntryPoint | None:
    return next(iter(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name)), None)


__all__ = ["external_class", "names_external"]
