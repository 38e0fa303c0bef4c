"""The conversion of values to JSON and back, for everything that is sent over the wire.

Numbers, strings, lists and objects are sent as they are. Bytes become base64 text (RFC 4648, section 5), dates ISO 8601
text, numpy scalars and arrays plain numbers and lists. Keys of objects become strings. A value that the other end
cannot read is refused with the name of its field. Such values are NaN and infinity (RFC 8259, section 6), lone
surrogates, whole numbers of more than `MAX_INTEGER_DIGITS`, values that refer to themselves, and values nested deeper
than `MAX_DEPTH`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from mcpenv_client.errors import NotSerializable

from .json_types import MAX_DEPTH as MAX_DEPTH
from .json_types import SCALARS, plain, text_reader_of_class, untyped, writer_of_class

M = TypeVar("M", bound=BaseModel)

MAX_NESTING = 180
"""Maximum nesting of the arguments and the result of a call, which records and replies nest some levels deeper."""

MAX_PARTS = 200_000
"""Maximum number of lists, objects and commas of a message to a server. Each may cost a hundred times its text."""

_EXPONENT, _BYTES_EXPONENT = re.compile("[0-9][eE]"), re.compile(b"[0-9][eE]")
MAX_DIGITS = 300
"""A number without an exponent that is too large for a float has more digits than this."""

MAX_INTEGER_DIGITS = 4_300
"""Maximum digits of a whole number. JSON readers of Python refuse longer ones."""

_TOO_LONG = 10**MAX_INTEGER_DIGITS
_NUMERALS = b"0123456789"

_UNSERIALIZABLE = (PydanticSerializationError, UnicodeError, TypeError, ValueError, OverflowError, RecursionError)
_MAX_PATH = 200
_DEEP_PATH = 40
_DICTS = (dict, UserDict)
_LISTS = (list, tuple, set, frozenset, deque, UserList)
_ALWAYS_ENCODABLE = frozenset({float, bool, type(None)})
_BETWEEN = bytes(set(range(256)) - set(b'"[]{},'))
_LEVELS = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]


def _may_be_infinite(text: str | bytes) -> bool:
    """Return True if a number in JSON text may be too large for a float: it has an exponent, or very many digits."""
    if len(text) > MAX_DIGITS:
        return True  # serializing again is faster than scanning the text
    return (_EXPONENT.search(text) if isinstance(text, str) else _BYTES_EXPONENT.search(text)) is not None


def _has_long_number(text: bytes) -> bool:
    """Return True if JSON text has more than `MAX_INTEGER_DIGITS` digits in a row, in a number or a string."""
    for at in range(MAX_INTEGER_DIGITS, len(text), MAX_INTEGER_DIGITS):  # one of these places is in such a row
        if text[at] in _NUMERALS:
            before, after = text[at - MAX_INTEGER_DIGITS : at], text[at : at + MAX_INTEGER_DIGITS]
            others = len(before.rstrip(_NUMERALS)) + len(after.lstrip(_NUMERALS))
            if len(before) + len(after) - others > MAX_INTEGER_DIGITS:
                return True
    return False


def encode(value: Any, what: str = "value") -> bytes:
    """Return JSON text of ``value``.

    Raises:
        NotSerializable: naming the field under ``what``.
    """
    return encode_plain(to_plain(value, what), what)


def encode_plain(data: Any, what: str = "value") -> bytes:
    """Return JSON text of plain data, which contains no model or dataclass. Faster than `encode`.

    Raises:
        NotSerializable: naming the field under ``what``.
    """
    try:
        text = to_json(data, inf_nan_mode="constants")
    except _UNSERIALIZABLE as error:
        raise _blame(data, what) from error
    if text.find(b"NaN") >= 0 or text.find(b"Infinity") >= 0 or _has_long_number(text):
        # These bytes may be part of a string. Only a walk over the values can tell.
        refuse_non_finite(data, what)
    if len(text) > 2 * MAX_DEPTH and _deeper(text, MAX_DEPTH):
        raise NotSerializable(what, f"nested more than {MAX_DEPTH} levels deep")
    return text


def to_plain(value: Any, what: str = "value", *, exclude: set[str] | None = None) -> Any:
    """Return ``value`` as plain JSON data (dicts, lists, strings, numbers, booleans, None).

    Args:
        value: anything.
        what: its name, for errors.
        exclude: fields to leave out, if it is a model.

    Raises:
        NotSerializable: naming the field under ``what``.
    """
    write = _write if exclude is None else functools.partial(_write, exclude=exclude)
    return _converted(value, what, write)[0]


def to_recorded(value: Any, what: str, write: Callable[[Any], Any] | None = None) -> tuple[Any, bytes]:
    """Return the arguments or the result of a call as plain JSON data, and as JSON text.

    Args:
        write: returns plain JSON data of ``value``; None for the conversion of `to_plain`.

    Raises:
        NotSerializable: naming the field under ``what``, also if it is nested deeper than `MAX_NESTING`.
    """
    data, text = _converted(value, what, write or _write)
    _refuse_deep(data, text, what)
    return data, text


_OPTIONS: dict[str, Any] = {"bytes_mode": "base64", "inf_nan_mode": "constants", "fallback": plain}


def _write(value: Any, exclude: set[str] | None = None) -> Any:
    """Return plain data. Its errors do not name the field."""
    if isinstance(value, BaseModel):
        writer = writer_of_class(type(value))
        return writer.to_python(value, mode="json", exclude=exclude, by_alias=True, warnings=False, fallback=plain)
    flat = type(value) is dict and SCALARS.issuperset(map(type, value.values()))  # most infos and options
    return to_jsonable_python(value if flat else untyped(value, by_alias=True), **_OPTIONS)


def write_json(value: Any) -> bytes:
    """Write a value as JSON text, as `to_plain` converts it. Its errors do not name the field."""
    return to_json(untyped(value, by_alias=True), **_OPTIONS)


read_json = functools.partial(from_json, allow_inf_nan=False)
"""Read JSON text. It raises ValueError for NaN and infinity, which `write_json` writes by name."""


def _converted(value: Any, what: str, write: Callable[[Any], Any]) -> tuple[Any, bytes]:
    try:
        data = write(value)
        text = to_json(data, inf_nan_mode="constants")
    except _UNSERIALIZABLE as error:
        raise _blame(value, what) from error
    if text.find(b"NaN") >= 0 or text.find(b"Infinity") >= 0 or _has_long_number(text):
        refuse_non_finite(data, what)
    if b"null" in text:
        # Models write NaN as null if their own settings, or pydantic's defaults, do so.
        refuse_non_finite(value, what)
    return data, text


def decode(text: str | bytes) -> Any:
    """Return the plain data of JSON text.

    Raises:
        ValueError: the text is not JSON, or contains NaN, infinity or a number too large for a float (1e999).
    """
    try:
        data = from_json(text, allow_inf_nan=False)
    except TypeError as error:  # a str with a lone surrogate
        raise ValueError("not valid Unicode text") from error
    if _may_be_infinite(text) and b"Infinity" in to_json(data, inf_nan_mode="constants"):
        try:
            refuse_non_finite(data, "value")
        except NotSerializable as error:
            raise ValueError(f"number out of range at {error.path}") from error
    return data


def revive(cls: type[M], data: Any) -> M:
    """Return a model from plain data, by JSON rules: base64 text becomes bytes again, ISO text a date.

    Pydantic's validation of Python data would take base64 text for the bytes themselves.

    Raises:
        pydantic.ValidationError: the data does not fit.
    """
    revived: M = text_reader_of_class(cls)(encode_plain(data))
    return revived


def without_computed(cls: type[BaseModel], data: dict[str, Any], keep: str = "") -> dict[str, Any]:
    """Return ``data`` without the computed fields of ``cls`` except ``keep``. They are written, but cannot be read."""
    computed = cls.model_computed_fields.keys() - {keep}
    if computed.isdisjoint(data):
        return data
    return {name: value for name, value in data.items() if name not in computed}


def refuse_unrecordable(value: Any, what: str) -> None:
    """Raise if a record cannot contain this plain data of a call.

    Raises:
        NotSerializable: naming the field that is NaN, infinite, a lone surrogate, or nested deeper than `MAX_NESTING`.
    """
    _refuse_deep(value, encode_plain(value, what), what)


def _refuse_deep(data: Any, text: bytes, what: str) -> None:
    if _deeper(text, MAX_NESTING + 1):
        refuse_non_finite(data, what, MAX_NESTING)


def excess_parts(text: bytes) -> int:
    """Return the number of lists, objects and commas in JSON text if it is above `MAX_PARTS`, else 0.

    The text is not parsed. In text that is no UTF-8, or no JSON, characters of strings may count as well.
    """
    if len(text) <= MAX_PARTS or (count := _count(text)) <= MAX_PARTS:
        return 0
    if b"\0" not in text:  # it is not UTF-16 or UTF-32, which Python reads, too
        count = _count(_structure(text))
    return count if count > MAX_PARTS else 0


def _count(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _deeper(text: bytes, levels: int) -> bool:
    """Return True if more than ``levels`` lists and objects of JSON text are nested in each other."""
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    return max(accumulate(map(_LEVELS.__getitem__, _structure(text)))) > levels


def _structure(text: bytes) -> bytes:
    """Return the brackets and commas of JSON text that are no part of a string."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Most strings are empty now. Without two quotes side by side, what stands between two others is as before.
    return b"".join(text.translate(None, _BETWEEN).replace(b'""', b"").split(b'"')[::2])


def refuse_non_finite(value: Any, path: str, max_depth: int = 2 * MAX_DEPTH) -> None:
    """Raise `NotSerializable` for the first NaN, infinity or too long number in ``value``, or for too deep nesting."""
    _refuse_non_finite(value, path, max_depth, max_depth)


def _refuse_non_finite(value: Any, path: str, depth: int, max_depth: int) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotSerializable(path, f"{value} has no JSON form; use None or a finite number")
    elif isinstance(value, int):
        if abs(value) >= _TOO_LONG:
            raise NotSerializable(path, f"a whole number of more than {MAX_INTEGER_DIGITS} digits; write it as text")
    elif value is None or isinstance(value, str | bytes):
        return
    elif depth < 0:
        where = path if len(path) <= _DEEP_PATH else f"{path[:_DEEP_PATH]}..."
        raise NotSerializable(where, f"nested too deeply: in more than {max_depth} lists and objects, or in itself")
    else:
        for where, part in _parts(value, path):
            _refuse_non_finite(part, where, depth - 1, max_depth)
        if isinstance(value, _DICTS):
            for key in value:
                if isinstance(key, float) and not math.isfinite(key):
                    raise NotSerializable(path, f"the key {key} has no JSON form")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of ``value`` with their paths; nothing for scalars and unknown types."""
    if isinstance(value, _DICTS):
        for key, item in value.items():
            yield f"{path}.{_shown(key)}", item
    elif isinstance(value, _LISTS):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            if not info.exclude:
                yield f"{path}.{name}", getattr(value, name, None)
        for name, item in (value.__pydantic_extra__ or {}).items():
            yield f"{path}.{_shown(name)}", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name, None)
    elif not isinstance(value, type) and hasattr(value, "tolist"):
        listed = value.tolist()
        if isinstance(listed, list):
            yield from _parts(listed, path)
        else:
            yield path, listed


def _blame(value: Any, path: str) -> NotSerializable:
    """Return the error that names the innermost part of ``value`` that cannot be serialized."""
    return _fault(value, path, set()) or NotSerializable(path[:_MAX_PATH], _reason(value))


def _fault(value: Any, path: str, enclosing: set[int]) -> NotSerializable | None:
    """Return the error of the first part of ``value`` without a JSON form; None if there is none.

    Dicts and lists are read once, whatever they contain. ``enclosing`` has the ids of those that contain ``value``.
    """
    if not isinstance(value, _DICTS + _LISTS) and _encodable(value):
        return None
    if id(value) in enclosing or len(enclosing) > MAX_DEPTH:
        return NotSerializable(path[:_MAX_PATH], "refers to itself, or is nested too deeply")
    enclosing.add(id(value))
    for where, part in _parts(value, path):
        if type(part) not in _ALWAYS_ENCODABLE and (fault := _fault(part, where, enclosing)) is not None:
            return fault
    enclosing.discard(id(value))
    if isinstance(value, _DICTS):
        for key in value:
            if not _encodable({key: None}):
                return NotSerializable(path[:_MAX_PATH], f"the key {_shown(key)} has no JSON form")
    elif not isinstance(value, _LISTS):
        return NotSerializable(path[:_MAX_PATH], _reason(value))
    return None


def _reason(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, str):
        return "a text with a lone surrogate (U+D800 to U+DFFF) has no JSON form"
    if isinstance(value, _DICTS + _LISTS):
        return "refers to itself, or is nested too deeply"
    return f"a value of type {name} has no JSON form"


def _encodable(value: Any) -> bool:
    try:
        write_json(value)
    except _UNSERIALIZABLE:
        return False
    return True


def _shown(key: Any) -> str:
    """Return a key as part of a path: short, and always valid in an error message."""
    shown = str(key) if isinstance(key, str | int | float | None) else f"<{type(key).__name__}>"
    return shown[:60].encode("utf-8", "backslashreplace").decode()
