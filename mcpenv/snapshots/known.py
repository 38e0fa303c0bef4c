"""Known objects: what belongs to an instance, so that a snapshot names it instead of copying it.

The environment itself, its worlds and what they hold (a connection), what all sessions share, the rubrics and what they
were given. In another instance the same names stand for that one's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath

PLAIN = (str, bytes, int, float, complex, bool, type(None))
"""Types whose objects have no identity of their own."""

CONTAINERS = (dict, list, set)


class Known:
    """The known objects of one instance, by name; and its places: folders and files that its worlds live in.

    Attributes:
        has_containers: there are plain containers among the objects.
    """

    def __init__(self) -> None:
        self.has_containers = False
        self._names: dict[int, str] = {}
        self._objects: dict[str, object] = {}
        self._places: dict[str, PurePath] = {}

    def add(self, name: str, known: object) -> None:
        """Know an object; of several names for one the first counts. A text or a path is a place."""
        if isinstance(known, str | PurePath):
            self._places[name] = PurePath(known)
        elif not isinstance(known, PLAIN):
            self._objects[name] = known
            self._names.setdefault(id(known), name)
            self.has_containers = self.has_containers or type(known) in CONTAINERS

    def name_of(self, known: object) -> str | None:
        """Its name, None if it is not known."""
        return self._names.get(id(known))

    def object_of(self, name: str) -> object:
        """The object of that name.

        Raises:
            LookupError: this instance has none.
        """
        if name not in self._objects:
            raise LookupError(f"this instance has no {name!r}")
        return self._objects[name]

    def place_of(self, path: PurePath) -> tuple[str, str] | None:
        """The place that a path is in or around, and the way from there; None if it is elsewhere."""
        for name, place in self._places.items():
            if path.is_relative_to(place):
                return name, path.relative_to(place).as_posix()
        for name, place in self._places.items():
            if path in place.parents:
                return name, "/".join([os.pardir] * (place.parents.index(path) + 1))
        return None

    def path_of(self, name: str, way: str) -> Path:
        """The path of `place_of` in this instance.

        Raises:
            LookupError: it has no such place.
        """
        if name not in self._places:
            raise LookupError(f"this instance has no place {name!r}")
        path = Path(self._places[name])
        for step in way.split("/"):
            path = path.parent if step == os.pardir else path / step
        return path

    def __iter__(self) -> Iterator[str]:
        """The names."""
        yield from self._objects
        yield from self._places
