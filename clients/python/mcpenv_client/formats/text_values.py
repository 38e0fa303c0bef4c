"""Arguments that a model writes as text, without quotes: read by the schema of the parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.values import decode, encode

from .references import Schema, schema_at

MAX_LITERAL = 100_000
"""Maximum characters of a value that is tried as a Python literal."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
_MAX_DEPTH = 32

_TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int, float),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def argument_schema(name: str, schema: Mapping[str, Any]) -> Schema:
    """Return the schema of one argument of a tool; True, which allows every value, if there is none.

    Args:
        name: the argument.
        schema: the input schema of the tool. Properties may stand in its parts and references too.
    """
    found = list(_declared(name, schema, schema, 0))
    if not found:
        more = schema.get("additionalProperties", True)
        return more if isinstance(more, Mapping) else True
    return found[0] if len(found) == 1 else {"anyOf": found}


def typed(text: str, schema: Schema, root: Mapping[str, Any]) -> Any:
    """Return the value that a text stands for.

    The text is read as JSON if the schema allows that value, unless it allows texts (and null) only: "5" is a text for
    ``string``, and a number for ``integer`` and for ``string`` or ``integer``. A number with more digits than a float
    has stays a text where texts are allowed. If nothing is allowed, JSON is used where it can be read, for the
    environment to refuse.

    Args:
        text: as the model wrote it.
        schema: the schema of the argument.
        root: the schema in which its references point.
    """
    as_text = allows(schema, text, root)
    # Quotes are part of a text, unless another type is allowed from which they tell it.
    probes: tuple[Any, ...] = (0, False, [], {})
    quoted = not as_text or any(allows(schema, probe, root) for probe in probes)
    readings = list(_readings(text, lenient=not as_text))
    for value in readings:
        plain = quoted if isinstance(value, str) else not (as_text and _rounded(value, text))
        if plain and allows(schema, value, root):
            return value
    return text if as_text or not readings else readings[0]


def allows(schema: Schema, value: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """Return True if type, ``enum``, ``const`` and combinations of a schema allow a value. Nothing else is checked."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema is not False
    if value is None and schema.get("nullable") is True:
        return True
    types = schema.get("type")
    if types is not None and not any(_is(each, value) for each in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and not any(_same(each, value) for each in schema["enum"]):
        return False
    if "const" in schema and not _same(schema["const"], value):
        return False
    if "$ref" in schema and not allows(schema_at(schema["$ref"], root), value, root, depth + 1):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(allows(each, value, root, depth + 1) for each in schema[keyword]):
            return False
    return all(allows(each, value, root, depth + 1) for each in schema.get("allOf", ()))


def _declared(name: str, schema: Schema, root: Mapping[str, Any], depth: int) -> Iterator[Schema]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        yield properties[name]
    parts = [each for keyword in ("allOf", "anyOf", "oneOf") for each in schema.get(keyword, ())]
    if "$ref" in schema:
        parts.append(schema_at(schema["$ref"], root))
    for part in parts:
        yield from _declared(name, part, root, depth + 1)


def _readings(text: str, *, lenient: bool) -> Iterator[Any]:
    """Yield the values that a text may stand for, JSON first.

    Args:
        lenient: the value is no text, so that spellings of other languages count: ``True``, ``+5``, ``['a']``.
    """
    try:
        yield decode(text)
        return
    except (ValueError, RecursionError):
        pass
    written = text.strip()
    if not lenient or not written:
        return
    if written.lower() in _WORDS:
        yield _WORDS[written.lower()]
    elif _NUMBER.fullmatch(written):
        whole = re.fullmatch(r"[+-]?\d{1,1000}", written)
        number = int(written) if whole else float(written)
        if number - number == 0:  # finite
            yield number
    elif written[0] in "[{(" and len(written) <= MAX_LITERAL:
        try:
            yield decode(encode(ast.literal_eval(written)))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, NotSerializable):
            return


def _rounded(value: Any, text: str) -> bool:
    """Return True if a number lost digits that the text has."""
    return isinstance(value, float) and Decimal(text.strip()) != Decimal(repr(value))


def _is(name: str, value: Any) -> bool:
    types = _TYPES.get(name)
    if types is None:  # a type of another dialect
        return True
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, types)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
