"""Define `World`, one place of an environment's state. ``env.world`` is a world, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

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


def capture(worlds: Worlds) -> Tree:
    """Return the current state; several worlds are captured by name.

    Raises:
        TypeError: if a value is not a `World`.
    """
    if isinstance(worlds, Mapping):
        return {str(name): _checked(world).capture() for name, world in worlds.items()}
    return _checked(worlds).capture()


def held(worlds: Worlds) -> tuple[object, ...]:
    """Return the objects that all worlds hold, and the worlds themselves.

    Raises:
        TypeError: if a value is not a `World`.
    """
    if isinstance(worlds, Mapping):
        return (worlds, *(each for world in worlds.values() for each in held(_checked(world))))
    return (worlds, *_checked(worlds).held())


def _checked(world: Any) -> World:
    if not isinstance(world, World):
        raise TypeError(
            f"env.world has a {type(world).__name__}, which is not a World. Use SQLiteWorld, FilesWorld, GitWorld or "
            "ObjectWorld"
        )
    return world
