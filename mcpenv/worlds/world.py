"""Define `World`, one place of an environment's state. ``env.world`` is a world, or several by name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from mcpenv.errors import WorldUnreadable

Tree = dict[str, Any]
"""A captured world: plain JSON data, nested objects."""


@runtime_checkable
class World(Protocol):
    """A place of state. Its methods run where sync code runs, and never at the same time as a tool or as each other."""

    def capture(self) -> Tree:
        """Return the current state for verifiers. The result must not change later."""
        ...

    def save(self) -> bytes:
        """Return the complete state, for `load`."""
        ...

    def load(self, saved: bytes) -> None:
        """Restore the state that `save` returned."""
        ...

    def held(self) -> tuple[object, ...]:
        """Return the author's objects that represent this state; copies of the environment's attributes omit them."""
        ...


Worlds = World | Mapping[str, World]
"""The type of ``env.world``."""


_until: ContextVar[float | None] = ContextVar("until", default=None)
"""The time at which the running capture must be over, by `time.monotonic`; None without a limit."""


class Budget:
    """The limits of one capture. What is read is counted before it is read.

    Args:
        what: the name of the world, for errors.
        max_bytes: maximum bytes.
        setting: the argument of the world that sets them; None: there is none.
    """

    def __init__(self, what: object, max_bytes: int, setting: str | None = "max_bytes") -> None:
        self._what, self._max, self._left = what, max_bytes, max_bytes
        self._hint = "" if setting is None else f"; {setting} sets the limit"

    def take(self, size: int = 0) -> None:
        """Count ``size`` bytes.

        Raises:
            WorldUnreadable: there are too many, or the capture takes too long.
        """
        self._left -= size
        if self._left < 0:
            raise WorldUnreadable(f"{self._what} has more than {self._max >> 20} MiB{self._hint}")
        if left_of_capture() == 0.0:
            raise WorldUnreadable(f"{self._what} takes too long to read")


def left_of_capture() -> float | None:
    """Return the seconds that the running capture has left; None without a limit."""
    until = _until.get()
    return None if until is None else max(until - time.monotonic(), 0.0)


def capture(worlds: Worlds, within_s: float | None = None) -> Tree:
    """Return the current state; several worlds are captured by name.

    Args:
        within_s: maximum seconds, which the worlds of mcpenv keep.

    Raises:
        WorldUnreadable: the content of a world cannot be captured.
        TypeError: if a value is not a `World`.
    """
    checked = {name: _checked(world) for name, world in worlds.items()} if isinstance(worlds, Mapping) else None
    token = _until.set(None if within_s is None else time.monotonic() + within_s)
    try:
        if checked is None:
            return _checked(worlds).capture()
        return {str(name): world.capture() for name, world in checked.items()}
    finally:
        _until.reset(token)


def free_key(key: str, tree: Tree) -> str:
    """Return a unique key. 1 and '1' have the same text, and so have ("a,b", "c") and ("a", "b,c")."""
    number, free = 1, key
    while free in tree:
        number += 1
        free = f"{key}#{number}"
    return free


def _checked(world: Any) -> World:
    if not isinstance(world, World):
        raise TypeError(
            f"env.world has a {type(world).__name__}, which is not a World. Use SQLiteWorld, FilesWorld, GitWorld or "
            "ObjectWorld"
        )
    return world
