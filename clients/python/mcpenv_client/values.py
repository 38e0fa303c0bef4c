"""Values and JSON: what crosses the wire, and the one place that decides how.

Numbers, strings, lists and objects cross as they are. Bytes become base64 text, dates ISO 8601 text,
numpy scalars and arrays plain numbers and lists. NaN and infinity have no JSON form (RFC 8259, section 6)
and are refused with the name of their field.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from .errors import NotSerializable

M = TypeVar("M", bound=BaseModel)

_UNSERIALIZABLE = (PydanticSerializationError, UnicodeEncodeError, TypeError, ValueError, RecursionError)
_MAX_DEPTH = 100


def plain(value: Any) -> Any:
    """The fallback of the serializers: array-likes (numpy, torch) by their own ``tolist``."""
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return tolist()


def encode(value: Any, what: str = "value") -> bytes:
    """JSON text of ``value``.

    Raises:
        NotSerializable: naming the field under ``what``.
    """
    try:
        text = to_json(value, bytes_mode="base64", inf_nan_mode="constants", fallback=plain)
    except _UNSERIALIZABLE as error:
        raise _blame(value, what, error) from error
    if b"NaN" in text or b"Infinity" in text:
        # These bytes may stand inside a string; only a walk over the values tells.
        refuse_non_finite(value, what)
    return text


def to_plain(value: Any, what: str = "value") -> Any:
    """``value`` as plain JSON data (dicts, lists, strings, numbers, booleans, None).

    Raises:
        NotSerializable: naming the field under ``what``.
    """
    try:
        data = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants", fallback=plain)
    except _UNSERIALIZABLE as error:
        raise _blame(value, what, error) from error
    refuse_non_finite(data, what)
    return data


def decode(text: str | bytes) -> Any:
    """Plain data of JSON text.

    Raises:
        ValueError: the text is not JSON (NaN and infinity are not).
    """
    return from_json(text, allow_inf_nan=False)


def revive(cls: type[M], data: Any) -> M:
    """A model from plain data, by JSON rules: base64 text becomes bytes again, ISO text a date.

    Python-mode validation would take base64 text for the bytes themselves.
    """
    return cls.model_validate_json(encode(data))


def refuse_non_finite(value: Any, path: str) -> None:
    """Raise `NotSerializable` for the first NaN or infinity in ``value``."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotSerializable(path, f"{value} has no JSON form; use None or a finite number")
    elif isinstance(value, dict):
        for key, item in value.items():
            refuse_non_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            refuse_non_finite(item, f"{path}[{index}]")
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            refuse_non_finite(getattr(value, key), f"{path}.{key}")
        for key, item in (value.__pydantic_extra__ or {}).items():
            refuse_non_finite(item, f"{path}.{key}")
    elif hasattr(value, "tolist"):
        refuse_non_finite(value.tolist(), path)


def _blame(value: Any, path: str, error: Exception, depth: int = 0) -> NotSerializable:
    """The innermost part of ``value`` that cannot be serialized."""
    if depth > _MAX_DEPTH:
        return NotSerializable(path[:200], "refers to itself or is nested too deeply")
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, BaseModel):
        parts = [(f"{path}.{key}", getattr(value, key)) for key in type(value).model_fields]
    for where, part in parts:
        try:
            to_json(part, bytes_mode="base64", inf_nan_mode="constants", fallback=plain)
        except _UNSERIALIZABLE as inner:
            return _blame(part, where, inner, depth + 1)
    return NotSerializable(path, f"a {type(value).__name__} has no JSON form")
