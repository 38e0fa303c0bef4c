"""List the objects that belong to an instance, so that a snapshot stores their names instead of copies.

These are: the environment itself, its worlds and the objects that they hold (a connection), the value that all sessions
share, the rubrics and their arguments. In another instance the same names refer to that instance's objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

PLAIN = (str, bytes, int, float, complex, bool, type(None))
"""Types of plain values. A snapshot copies them instead of storing a name."""

CONTAINERS = (dict, list, set)


class Known:
    """The known objects of one instance by name, and its places: the folders and files of its worlds.

    Attributes:
        has_containers: True if a known object is a plain container.
    """

    def __init__(self) -> None:
        self.has_containers = False
        self._names: dict[int, str] = {}
        self._objects: dict[str, object] = {}
        self._places: dict[str, PurePath] = {}

    def add(self, name: str, known: object) -> None:
        """Add an object. If it has several names, the first one is used. A text or a path is a place."""
        if isinstance(known, str | PurePath):
            self._places[name] = PurePath(known)
        elif not isinstance(known, PLAIN):
            self._objects[name] = known
            self._names.setdefault(id(known), name)
            self.has_containers = self.has_containers or type(known) in CONTAINERS

    def name_of(self, known: object) -> str | None:
        """Return the name of an object, or None if it is not known."""
        return self._names.get(id(known))

    def object_of(self, name: str) -> object:
        """Return the object with that name.

        Raises:
            LookupError: if this instance has none.
        """
        if name not in self._objects:
            raise LookupError(f"this instance has no {name!r}")
        return self._objects[name]

    def place_of(self, path: PurePath) -> tuple[str, str] | None:
        """Return the place that contains a path or lies below it, and the relative path from there; or None."""
        for name, place in self._places.items():
            if path.is_relative_to(place):
                return name, path.relative_to(place).as_posix()
        for name, place in self._places.items():
            if path in place.parents:
                return name, "/".join([os.pardir] * (place.parents.index(path) + 1))
        return None

    def path_of(self, name: str, way: str) -> Path:
        """Return the path of `place_of` in this instance.

        Raises:
            LookupError: if this instance has no such place.
        """
        if name not in self._places:
            raise LookupError(f"this instance has no place {name!r}")
        path = Path(self._places[name])
        for step in way.split("/"):
            path = path.parent if step == os.pardir else path / step
        return path

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        yield from self._objects
        yield from self._places
