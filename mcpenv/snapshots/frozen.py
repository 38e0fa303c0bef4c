"""Frozen: the author's objects as bytes, by pickle, with what belongs to the instance named in the place of a copy."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from ..failures import own_words
from .known import CONTAINERS, Known

MAX_DEPTH = 6
"""How far down the one part is looked for that cannot be frozen."""


class CannotFreeze(Exception):
    """A part that has no frozen form.

    Attributes:
        path: where it stands, as in ``.game.lock``.
        reason: what pickle said of it.
        part: the part.
    """

    def __init__(self, path: str, reason: str, part: Any) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason
        self.part = part


class CannotThaw(Exception):
    """Bytes that this instance cannot make objects of: it lacks something that they name, or code has changed."""


def freeze(parts: Mapping[str, Any], known: Known) -> bytes:
    """The parts as bytes; what they share is shared again when they are thawed.

    Raises:
        CannotFreeze: naming the part, as deep down as can be told.
    """
    try:
        return _frozen(parts, known)
    except Exception as error:
        path, cause, part = _culprit(parts, known, MAX_DEPTH) or ("", error, parts)
        raise CannotFreeze(path, own_words(cause), part) from error


def thaw(data: bytes, known: Known) -> dict[str, Any]:
    """The parts that were frozen.

    Raises:
        CannotThaw: what they name is not there.
    """
    try:
        parts: dict[str, Any] = _Thawing(io.BytesIO(data), known).load()
    except Exception as error:
        raise CannotThaw(own_words(error)) from error
    return parts


class PlaceText:
    """A text that is a path in one of the instance's places: a text again when it is thawed."""

    def __init__(self, name: str, way: str) -> None:
        self.name = name
        self.way = way

    def __reduce__(self) -> tuple[Callable[..., str], tuple[str, str]]:
        return place_text, (self.name, self.way)


def with_places(value: Any, known: Known) -> Any:
    """``value``, to be frozen by way of its place if it is a path in the form of a text."""
    if type(value) is not str or not PurePath(value).is_absolute():
        return value
    place = known.place_of(PurePath(value))
    return value if place is None else PlaceText(*place)


def known_object(name: str) -> object:
    """Stands in frozen bytes for `Known.object_of`."""
    raise NotImplementedError


def place_path(name: str, way: str) -> Path:
    """Stands in frozen bytes for `Known.path_of`."""
    raise NotImplementedError


def place_text(name: str, way: str) -> str:
    """Stands in frozen bytes for `Known.path_of`, as a text."""
    raise NotImplementedError


class _Freezing(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file, protocol=5)
        self._known = known

    def reducer_override(self, value: Any) -> Any:
        """Asked of all but plain data, which keeps this fast."""
        name = self._known.name_of(value)
        if name is not None:
            return known_object, (name,)
        if isinstance(value, tempfile.TemporaryDirectory):
            raise pickle.PicklingError("a temporary folder cannot be copied; a FilesWorld holds what is in one")
        if isinstance(value, PurePath):
            place = self._known.place_of(value)
            if place is not None:
                return place_path, place
        return NotImplemented


class _FreezingContainers(_Freezing):
    """The same where known objects are plain containers, which are plain data to pickle: it asks of every object."""

    def persistent_id(self, value: Any) -> str | None:
        """The name of a known container."""
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
        """The known container of that name."""
        return self._known.object_of(name)

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the bytes stands for."""
        stand_in = self._stand_ins.get((module, name))
        return super().find_class(module, name) if stand_in is None else stand_in


def _frozen(value: Any, known: Known) -> bytes:
    file = io.BytesIO()
    (_FreezingContainers if known.has_containers else _Freezing)(file, known).dump(value)
    return file.getvalue()


def _culprit(value: Any, known: Known, depth: int) -> tuple[str, Exception, Any] | None:
    """Where the first part is that cannot be frozen, why, and the part; None if each of them can."""
    for step, part in _parts_of(value):
        try:
            _frozen(part, known)
        except Exception as error:  # noqa: BLE001 - objects of the author's, whose pickling may raise anything
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
