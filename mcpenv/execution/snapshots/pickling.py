"""Pickle the author's objects. Objects that belong to the instance are stored by name instead of being copied."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from mcpenv.failures import own_words

from .references import CONTAINERS, Known

MAX_DEPTH = 6
"""Maximum depth of the search for the part that cannot be pickled."""


class CannotFreeze(Exception):
    """The error that a part cannot be pickled.

    Attributes:
        path: the location of the part, such as ``.game.lock``.
        reason: the text of pickle's error.
        part: the part.
    """

    def __init__(self, path: str, reason: str, part: Any) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason
        self.part = part


class CannotThaw(Exception):
    """The error that bytes cannot be loaded in this instance: it lacks an object that they name, or code changed."""


def freeze(parts: Mapping[str, Any], known: Known) -> bytes:
    """Return the parts as bytes. Objects that parts share are shared again after `thaw`.

    Raises:
        CannotFreeze: with the part, as deep as it can be located.
    """
    try:
        return _frozen(parts, known)
    except Exception as error:
        path, cause, part = _culprit(parts, known, MAX_DEPTH) or ("", error, parts)
        raise CannotFreeze(path, own_words(cause), part) from error


def thaw(data: bytes, known: Known) -> dict[str, Any]:
    """Return the parts that were frozen.

    Raises:
        CannotThaw: if an object that they name does not exist.
    """
    try:
        parts: dict[str, Any] = _Thawing(io.BytesIO(data), known).load()
    except Exception as error:
        raise CannotThaw(own_words(error)) from error
    return parts


class PlaceText:
    """A path as text, in one of the instance's places. It is loaded as text again."""

    def __init__(self, name: str, way: str) -> None:
        self.name = name
        self.way = way

    def __reduce__(self) -> tuple[Callable[..., str], tuple[str, str]]:
        return place_text, (self.name, self.way)


def with_places(value: Any, known: Known) -> Any:
    """Return a `PlaceText` if ``value`` is a text with a path in a known place, else return ``value``."""
    if type(value) is not str or not PurePath(value).is_absolute():
        return value
    place = known.place_of(PurePath(value))
    return value if place is None else PlaceText(*place)


def known_object(name: str) -> object:
    """Stand for `Known.object_of` in pickled bytes."""
    raise NotImplementedError


def place_path(name: str, way: str) -> Path:
    """Stand for `Known.path_of` in pickled bytes."""
    raise NotImplementedError


def place_text(name: str, way: str) -> str:
    """Stand for `Known.path_of`, as text, in pickled bytes."""
    raise NotImplementedError


class _Freezing(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file, protocol=5)
        self._known = known

    def reducer_override(self, value: Any) -> Any:
        """Reduce known objects and places. Pickle does not call this for plain data, which keeps it fast."""
        name = self._known.name_of(value)
        if name is not None:
            return known_object, (name,)
        if isinstance(value, tempfile.TemporaryDirectory):
            raise pickle.PicklingError("a temporary folder cannot be copied. Use a FilesWorld for its content")
        if isinstance(value, PurePath):
            place = self._known.place_of(value)
            if place is not None:
                return place_path, place
        return NotImplemented


class _FreezingContainers(_Freezing):
    """A pickler for known objects that are plain containers. It is slower, as `persistent_id` sees every object."""

    def persistent_id(self, value: Any) -> str | None:
        """Return the name of a known container, or None."""
        return self._known.name_of(value) if type(value) in CONTAINERS else None


class _Thawing(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file)
        self._known = known
        self._stand_ins: dict[tuple[str, str], Callable[..., Any]] = {
            (__name__, known_object.__name__): known.object_of,
            (__name__, place_path.__name__): known.path_of,
            (__name__, place_text.__name__): lambda name, way: str(known.path_of(name, way)),
        }

    def persistent_load(self, name: str) -> object:
        """Return the known container with that name."""
        return self._known.object_of(name)

    def find_class(self, module: str, name: str) -> Any:
        """Return the object that a name in the bytes stands for."""
        stand_in = self._stand_ins.get((module, name))
        return super().find_class(module, name) if stand_in is None else stand_in


def _frozen(value: Any, known: Known) -> bytes:
    file = io.BytesIO()
    (_FreezingContainers if known.has_containers else _Freezing)(file, known).dump(value)
    return file.getvalue()


def _culprit(value: Any, known: Known, depth: int) -> tuple[str, Exception, Any] | None:
    """Return location, error and value of the first part that cannot be pickled; None if each part can."""
    for step, part in _parts_of(value):
        try:
            _frozen(part, known)
        except Exception as error:  # noqa: BLE001 - pickling the author's objects may raise anything
            deeper = _culprit(part, known, depth - 1) if depth > 1 else None
            return (step, error, part) if deeper is None else (step + deeper[0], *deeper[1:])
    return None


def _parts_of(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and not isinstance(value, type) and not callable(value):
        return [(f".{name}", part) for name, part in own.items()]
    return []
