"""World: one place where an environment's state is. ``env.world`` names it, or several of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

Tree = dict[str, Any]
"""What a world looks like: plain JSON data, objects inside objects."""


@runtime_checkable
class World(Protocol):
    """A place where state is. Its methods are called in turn with the tools, where sync code runs, never at once."""

    def capture(self) -> Tree:
        """What it looks like now, for verifiers: nothing in it changes later."""
        ...

    def save(self) -> bytes:
        """All of it, for `load`."""
        ...

    def load(self, saved: bytes) -> None:
        """Make it again what it was when `save` gave ``saved``."""
        ...

    def held(self) -> tuple[object, ...]:
        """Objects of the author's that stand for it, which a copy of the environment's attributes leaves out."""
        ...


Worlds = World | Mapping[str, World]
"""What ``env.world`` may be."""


def capture(worlds: Worlds) -> Tree:
    """What they look like now; several stand beside each other by their names.

    Raises:
        TypeError: something else was given.
    """
    if isinstance(worlds, Mapping):
        return {str(name): _checked(world).capture() for name, world in worlds.items()}
    return _checked(worlds).capture()


def held(worlds: Worlds) -> tuple[object, ...]:
    """What all of them hold, themselves included.

    Raises:
        TypeError: something else was given.
    """
    if isinstance(worlds, Mapping):
        return (worlds, *(each for world in worlds.values() for each in held(_checked(world))))
    return (worlds, *_checked(worlds).held())


def _checked(world: Any) -> World:
    if not isinstance(world, World):
        raise TypeError(
            f"env.world has a {type(world).__name__}, which is no World; SQLiteWorld, FilesWorld and ObjectWorld are"
        )
    return world
