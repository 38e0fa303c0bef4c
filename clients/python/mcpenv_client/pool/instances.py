"""The environments of a pool in its own processes. The server's distribution makes them, found by an entry point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from .backend import PoolError
from .sessions import BlockingSession, Session

ENTRY_POINTS = "mcpenv_client.instances"
"""The entry-point group of functions that make environments in this process. The extension ``in_process`` has one."""

Target = str | Callable[[], Any]
"""The name of an environment: a TARGET of ``mcpenv run``, an environment's class, or a function that makes one."""


class NamedBlocking(BlockingSession, Protocol):
    """An environment with blocking methods."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


class NamedSession(Session, Protocol):
    """An environment with async methods."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


class Instances(Protocol):
    """Makes environments of one target in this process."""

    def blocking(self) -> NamedBlocking:
        """Return a new environment with blocking methods."""
        ...

    def session(self) -> NamedSession:
        """Return a new environment with async methods."""
        ...


def modules_of_makers() -> list[str]:
    """Return the modules that `instances_of` imports, so that a process can import them before it forks."""
    return [entry.module for entry in entry_points(group=ENTRY_POINTS)]


def instances_of(target: Target, settings: Sequence[str] = ()) -> Instances:
    """Return the maker of environments of a target.

    Args:
        target: the target.
        settings: ``NAME=VALUE`` for each setting, as ``--set`` of ``mcpenv run``; only for a target that is a text.

    Raises:
        PoolError: ``mcpenv`` is missing, or the target cannot be loaded.
    """
    found = list(entry_points(group=ENTRY_POINTS))
    if not found:
        raise PoolError("environments in this process need the package mcpenv: install it, or give the URL of a server")
    made: Instances | str = found[0].load()(target, settings)
    if isinstance(made, str):
        raise PoolError(made)
    return made
