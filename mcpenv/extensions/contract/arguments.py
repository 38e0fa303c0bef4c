"""Make valid and invalid arguments from a tool's input schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from mcpenv_client.formats.references import Unresolvable, target_of

_MAX_DEPTH = 20
_WRONG_VALUES: tuple[Any, ...] = ({"mcpenv": ["wrong"]}, [["mcpenv wrong"]])
"""Values that pydantic does not coerce to another type: an object and a list of lists."""

_BY_FORMAT = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "duration": "PT1M",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "path": "file.txt",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "base64": "bWNwZW52",
    "binary": "text",
}

UNKNOWN_ARGUMENT = "mcpenv_no_such_argument"
"""A name that is not a parameter of any tool."""


def arguments_for(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the required arguments of a schema, or None if none can be made (a pattern, an unsupported type)."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        arguments = _value_for(schema, schema, 0)
        jsonschema.validate(arguments, schema)
    except (_CannotMake, Unresolvable, jsonschema.ValidationError, jsonschema.SchemaError):
        return None
    return arguments if isinstance(arguments, dict) else None


def wrong_arguments(schema: dict[str, Any], good: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield invalid arguments: an unknown one, each required one missing, each one with a wrong type."""
    properties = schema.get("properties", {})
    if schema.get("additionalProperties") is False:
        yield {**good, UNKNOWN_ARGUMENT: 1}
    for name in schema.get("required", ()):
        yield {key: value for key, value in good.items() if key != name}
    for name, own in properties.items():
        whole = {"$defs": schema.get("$defs", {}), "allOf": [own]}
        for wrong in _WRONG_VALUES:
            if fits(wrong, whole) is False:
                yield {**good, name: wrong}
                break


def fits(value: Any, schema: dict[str, Any]) -> bool | None:
    """Return True if a value fits a schema; None if that is not known, because the schema is not valid itself."""
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(value)  # type: ignore[no-any-return]
    except (jsonschema.exceptions.UnknownType, TypeError, ValueError, re.error):
        return None


class _CannotMake(Exception):
    """The error that a schema uses features that are not supported here."""


def _value_for(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _CannotMake
    if schema is True or schema == {}:
        return "text"
    if not isinstance(schema, dict):
        raise _CannotMake
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    if "$ref" in schema:
        return _value_for(target_of(schema["$ref"], root), root, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return _first_of(schema[word], root, depth)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _value_for(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        return _array_for(schema, root, depth)
    if kind == "string":
        return _string_for(schema)
    if kind in ("integer", "number"):
        return _number_for(schema)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    raise _CannotMake


def _first_of(choices: list[Any], root: dict[str, Any], depth: int) -> Any:
    for choice in sorted(choices, key=lambda c: isinstance(c, dict) and c.get("type") == "null"):
        try:
            return _value_for(choice, root, depth + 1)
        except (_CannotMake, Unresolvable):
            continue
    raise _CannotMake


def _array_for(schema: dict[str, Any], root: dict[str, Any], depth: int) -> list[Any]:
    made = [_value_for(item, root, depth + 1) for item in schema.get("prefixItems", ())]
    while len(made) < schema.get("minItems", 0):
        made.append(_value_for(schema.get("items", {}), root, depth + 1))
    return made


def _string_for(schema: dict[str, Any]) -> str:
    if "pattern" in schema:
        raise _CannotMake
    text = _BY_FORMAT.get(schema.get("format", ""), "text")
    return text.ljust(schema.get("minLength", 0), "x")[
        : schema.get("maxLength", len(text) + schema.get("minLength", 0))
    ]


def _number_for(schema: dict[str, Any]) -> float | int:
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    candidates = [step, 0, *(bound + add for bound in (low, high) if bound is not None for add in (0, step, -step))]
    if low is not None and high is not None:
        candidates.append((low + high) / 2)
    for candidate in candidates:
        if fits(candidate, schema):
            return candidate  # type: ignore[no-any-return]
    raise _CannotMake
