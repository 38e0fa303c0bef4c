"""Convert JSON to the Python types that authors annotate, and values of these types to JSON.

Pydantic does both. It is corrected in five points, also inside models, lists and dicts, and where there is no type:

- Bytes are base64 text, and the JSON Schema says so. Pydantic would read and write them as UTF-8.
- An ``Iterable`` is a list, and checked before the tool runs. Pydantic would check each item when the tool reads it.
- The items of a set are sorted. Pydantic would write them by their hashes, which differ between processes.
- A complex number has a JSON form only where its type says that it is text. Pydantic would write it as text anywhere.
- The values share no list or dict with the JSON that they are made of, so that a tool may change its arguments.

`values` converts values without a type.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any

from pydantic import BaseModel, SerializationInfo, TypeAdapter
from pydantic.types import EncodedBytes
from pydantic_core import CoreConfig, SchemaSerializer, SchemaValidator, to_json

_NO_SCHEMAS = frozenset({"metadata", "default", "cls", "expected", "members", "config"})
"""The keys of a core schema that do not lead to the schemas of its parts."""

_COPYING = frozenset({"arguments", "default", "nullable", "union", "literal", "none", "bool", "int", "float", "str"})
"""The types of core schemas that return no list or dict of their input. Lists and dicts with typed items are others."""

_ITEMS = {"list": "items_schema", "set": "items_schema", "frozenset": "items_schema", "dict": "values_schema"}

_ARRAYS = ("set", "frozenset", "list", "tuple")
_COLLECTIONS = (*_ARRAYS, "dict", "typed-dict")
_REWRITTEN = ("bytes", *_ARRAYS)

SCALARS = frozenset({str, int, float, bool, type(None)})
"""The types of JSON values without parts."""

MAX_DEPTH = 200
"""Maximum nesting of lists and objects that pydantic's JSON reader accepts. The other end refuses deeper text, and some
450 levels would exceed Python's limit of recursion."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)

_OWN = _COPYING | {
    "any", "bytes", "dataclass", "dataclass-args", "dataclass-field", "date", "datetime", "decimal", "definition-ref",
    "definitions", "dict", "enum", "frozenset", "list", "model", "model-field", "model-fields", "set", "tagged-union",
    "time", "timedelta", "tuple", "typed-dict", "typed-dict-field", "uuid",
}  # fmt: skip
"""The types of core schemas that pydantic implements itself."""


def reader_of(schema: Any) -> Callable[[Any], Any]:
    """Return the function that validates plain JSON data by a core schema, and returns the Python value.

    It raises ``pydantic.ValidationError``, and whatever validators of the author raise.
    """
    schema = _built(schema)
    nodes = list(_nodes(schema))
    corrected = any(node["type"] in ("bytes", "generator") for node in nodes)
    # Without this, validators of models that pydantic has already built would be used.
    validator = SchemaValidator(_reading(schema), _use_prebuilt=False) if corrected else SchemaValidator(schema)
    validate = validator.validate_python
    if all(node["type"] in _COPYING or _ITEMS.get(node["type"]) in node for node in nodes):
        return validate
    return lambda data: validate(copied(data))


@functools.lru_cache(maxsize=1024)
def text_reader_of_class(cls: type[BaseModel]) -> Callable[[bytes], Any]:
    """Return the function that validates JSON text as a model.

    Raises:
        pydantic.ValidationError: the text does not fit.
    """
    schema = _built(cls.__pydantic_core_schema__)
    if any(node["type"] == "bytes" for node in _nodes(schema)):
        return SchemaValidator(_reading(schema, of_text=True), _use_prebuilt=False).validate_json
    return cls.model_validate_json


def writer_of(schema: Any, *, unchecked: bool = False) -> SchemaSerializer:
    """Return the serializer that writes values of a core schema as JSON. It takes `plain` as its ``fallback``.

    Args:
        unchecked: True if a model may be in the place of any collection, whatever the schema says.
    """
    config = CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="base64")
    schema = _built(schema)
    if unchecked or any(node["type"] in _REWRITTEN or _is_open(node) for node in _nodes(schema)):
        return SchemaSerializer(_writing(schema, unchecked), config, _use_prebuilt=False)
    return SchemaSerializer(schema, config)


def untyped(value: Any, by_alias: bool | None = None) -> Any:
    """Return a value that has no type as pydantic is to write it.

    Collections become dicts and lists, models and dataclasses dicts as `writer_of` writes them. Other values stay.

    Raises:
        pydantic_core.PydanticSerializationError, TypeError: a part of it has no JSON form.
        ValueError: it refers to itself, or is nested too deeply.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is dict:
        if SCALARS.issuperset(map(type, value.values())):
            return value
    elif (kind is list or kind is tuple) and SCALARS.issuperset(map(type, value)):
        return value
    key = id(value)
    if key in _enclosing.ids or len(_enclosing.ids) > MAX_DEPTH:
        raise ValueError("refers to itself, or is nested too deeply")
    _enclosing.ids.add(key)
    try:
        if kind is dict:
            return {name: untyped(part, by_alias) for name, part in value.items()}
        if kind is list or kind is tuple:
            return [untyped(part, by_alias) for part in value]
        return _untyped_object(value, by_alias)
    finally:
        _enclosing.ids.discard(key)


class _Enclosing(threading.local):
    """The ids of the values that a thread is converting, each a part of the one before.

    Without them, what stands beside a reference of a value to itself would be converted at each level of recursion.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()


_enclosing = _Enclosing()


def _untyped_object(value: Any, by_alias: bool | None) -> Any:
    kind: Any = type(value)
    if isinstance(value, str | bytes | bytearray | type):
        return value
    if isinstance(value, Mapping) or hasattr(value, "keys"):
        return untyped(dict(value), by_alias)
    if isinstance(value, set | frozenset):
        parts = UNTYPED.to_python([*value], mode="json", by_alias=by_alias, warnings=False, fallback=plain)
        return _in_order(parts)
    if isinstance(value, complex):
        raise TypeError("a complex number has no JSON form")
    if isinstance(value, memoryview):
        return value.tobytes() if value.itemsize == 1 else value.tolist()
    if isinstance(value, BaseModel) or hasattr(kind, "__pydantic_serializer__"):
        return writer_of_class(kind).to_python(value, mode="json", by_alias=by_alias, warnings=False, fallback=plain)
    if dataclasses.is_dataclass(value):
        return {field.name: untyped(getattr(value, field.name), by_alias) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence | Set | ValuesView | Iterator):
        return untyped(list(value), by_alias)
    return value


@functools.lru_cache(maxsize=1024)
def writer_of_class(cls: Any) -> SchemaSerializer:
    """Return the serializer of a class of models or dataclasses, as `writer_of`."""
    return writer_of(TypeAdapter(cls).core_schema)


def plain(value: Any) -> Any:
    """Return the form of a value that pydantic does not know: a collection, or the text that its class defines.

    Array-likes (numpy, torch) become lists by their own ``tolist``. It is the fallback of all serializers.

    Raises:
        TypeError: it has no JSON form.
    """
    if not isinstance(value, type):
        if hasattr(value, "tolist"):
            if "complex" in str(getattr(value, "dtype", "")):
                raise TypeError("complex numbers have no JSON form")
            return value.tolist()
        collected = untyped(value)
        if collected is not value:
            return collected
        text = str(value)
        if type(value).__str__ is not object.__str__ and not _ADDRESS.search(text):  # type: ignore[comparison-overlap]
            return text
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def with_base64(schema: Any) -> Any:
    """Return a JSON Schema in which bytes are base64 text."""
    if isinstance(schema, list):
        return [with_base64(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: part if key in ("default", "const", "enum") else with_base64(part) for key, part in schema.items()}
    if schema.get("format") == "binary":
        schema["format"] = "base64url"
        if isinstance(schema.get("default"), str):
            schema["default"] = base64.urlsafe_b64encode(schema["default"].encode()).decode()
        if "maxLength" in schema:
            schema["maxLength"] = 4 * -(-schema["maxLength"] // 3)
    return schema


def runs_no_code(schema: Any) -> bool:
    """Return True if validating and writing by a core schema runs no code of an author."""
    return all(
        node["type"] in _OWN and not node.keys() & {"serialization", "default_factory"} and not _is_hooked(node)
        for node in _nodes(schema)
    )


def _is_open(node: dict[str, Any]) -> bool:
    """Return True if a part of its values has no type."""
    return node["type"] == "any" or node.get("serialization") == _ANY_SCHEMA or _takes_extras(node)


def _takes_extras(node: dict[str, Any]) -> bool:
    return bool(node["type"] == "model" and node.get("config", {}).get("extra_fields_behavior") == "allow")


def _is_hooked(node: dict[str, Any]) -> bool:
    return bool(node.get("post_init") or node.get("custom_init") or node.get("computed_fields"))


def copied(data: Any) -> Any:
    """Return plain JSON data with new lists and dicts."""
    if type(data) is dict:
        return {name: copied(part) if type(part) in (dict, list) else part for name, part in data.items()}
    if type(data) is list:
        return [copied(part) if type(part) in (dict, list) else part for part in data]
    return data


def _built(schema: Any) -> Any:
    """Return a core schema that pydantic may have put off (``defer_build``)."""
    return schema if isinstance(schema, dict) else dict(schema)


def _nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all core schemas in a part of one."""
    if isinstance(part, dict):
        skipped: frozenset[str] = frozenset()
        if isinstance(part.get("type"), str):
            yield part
            skipped = _no_schemas(part) | {"serialization"}
        for key, inner in part.items():
            if key not in skipped:
                yield from _nodes(inner)
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _nodes(inner)


def _no_schemas(part: dict[str, Any]) -> frozenset[str]:
    """Return the keys of a part that do not lead to schemas; none if its keys are names of an author's fields."""
    return _NO_SCHEMAS if isinstance(part.get("type"), str) else frozenset()


def _reading(part: Any, *, of_text: bool = False) -> Any:
    """Return a part of a core schema as it is for `reader_of`, or for `text_reader_of_class`."""
    if isinstance(part, list | tuple):
        return type(part)([_reading(inner, of_text=of_text) for inner in part])
    if not isinstance(part, dict) or _decodes(part):
        return part
    kept = _no_schemas(part)
    changed = {key: inner if key in kept else _reading(inner, of_text=of_text) for key, inner in part.items()}
    if part.get("type") == "bytes":
        decoding = {"type": "function-before", "function": {"type": "no-info", "function": _decoded}, "schema": part}
        # In a union, a text that is to be decoded must match less exactly than a text that is taken unchanged.
        # A strict schema takes JSON text for bytes, but no text of Python.
        exact = decoding if of_text else {**part, "strict": True}
        return {"type": "lax-or-strict", "lax_schema": decoding, "strict_schema": exact}
    if part.get("type") == "generator":
        limits = {key: inner for key, inner in changed.items() if key in ("items_schema", "min_length", "max_length")}
        return {"type": "list", **limits}
    return changed


def _writing(part: Any, unchecked: bool) -> Any:
    """Return a part of a core schema as it is for `writer_of`."""
    if isinstance(part, list | tuple):
        return type(part)([_writing(inner, unchecked) for inner in part])
    if not isinstance(part, dict):
        return part
    kept = _no_schemas(part) | ({"keys_schema"} if part.get("keys_schema") == _ANY_SCHEMA else set())
    changed = {key: inner if key in kept else _writing(inner, unchecked) for key, inner in part.items()}
    if part.get("type") in ("model", "dataclass", "typed-dict"):
        changed["config"] = {**part.get("config", {}), "ser_json_bytes": "base64"}
    if _decodes(part):
        encoded: EncodedBytes = part["function"]["function"].__self__
        changed["serialization"] = {"type": "function-plain", "function": lambda value: encoded.encode(value).decode()}
    elif "serialization" in part:
        if part["serialization"] == _ANY_SCHEMA:
            changed["serialization"] = _AS_UNTYPED
    elif part.get("type") == "any":
        changed["serialization"] = _AS_UNTYPED
    elif unchecked and part.get("type") in _COLLECTIONS:
        changed["serialization"] = {"type": "function-wrap", "function": _written_collection, "info_arg": True}
    elif part.get("type") in _ARRAYS:
        changed["serialization"] = {"type": "function-wrap", "function": written_in_order}
    elif isinstance(part.get("type"), str) and _takes_extras(part):
        changed["schema"] = _with_extras(changed["schema"])
    return changed


def _with_extras(schema: Any) -> Any:
    """Return the schema of a model's fields whose further fields are written as values without a type."""
    if schema["type"] == "model-fields":
        return {"extras_schema": {"type": "any", "serialization": _AS_UNTYPED}, **schema}
    return {**schema, "schema": _with_extras(schema["schema"])} if "schema" in schema else schema


def _written_collection(value: Any, write: Callable[[Any], Any], info: SerializationInfo) -> Any:
    """Return what is in the place of a collection. A model would be written by the settings of its own class there."""
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return untyped(value, info.by_alias)
    return written_in_order(value, write)


def written_in_order(value: Any, write: Callable[[Any], Any]) -> Any:
    """Return a set as a list in order, where another type is promised too, and other values as `write` writes them."""
    written = write(value)
    return _in_order(written) if isinstance(value, set | frozenset) and isinstance(written, list) else written


def _in_order(items: list[Any]) -> list[Any]:
    """Return plain data sorted: numbers and texts in their order, other items by their JSON text."""
    alike = all(isinstance(item, str) for item in items) or all(isinstance(item, int | float) for item in items)
    return sorted(items, key=None if alike else to_json)


def _decodes(part: dict[str, Any]) -> bool:
    """Return True for the schema of `pydantic.Base64Bytes` and its like, which decode bytes themselves."""
    return part.get("type") == "function-after" and isinstance(
        getattr(part["function"]["function"], "__self__", None), EncodedBytes
    )


def _decoded(value: Any) -> Any:
    """Return the bytes of base64 text, of either alphabet of RFC 4648, with or without padding."""
    if not isinstance(value, str):
        return value
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    with contextlib.suppress(ValueError):  # of characters that are none of the alphabet
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        if base64.b64encode(decoded).decode().rstrip("=") == text:
            return decoded
    raise ValueError("bytes are base64 text (RFC 4648)")


def _written_untyped(value: Any, info: SerializationInfo) -> Any:
    return untyped(value, info.by_alias)


_ANY_SCHEMA = {"type": "any"}
_AS_UNTYPED = {"type": "function-plain", "function": _written_untyped, "info_arg": True}

UNTYPED = writer_of(_ANY_SCHEMA)
"""The serializer of values that have no type."""
