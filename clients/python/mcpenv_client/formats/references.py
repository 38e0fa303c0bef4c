"""References in JSON Schema: where ``$ref`` points to, and schemas with every reference replaced by its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

Schema = Any
"""A JSON Schema: an object, or a boolean."""

ONE = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""The keywords with one schema."""

SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
"""The keywords with a list of schemas. ``items`` had one before draft 2020-12."""

NAMED = frozenset({"dependentSchemas", "patternProperties", "properties"})
"""The keywords with schemas by name."""

DEFINITIONS = frozenset({"$defs", "definitions"})
"""The keywords with schemas that apply only where a reference names them."""

ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
"""The keywords that restrict nothing."""

MAX_PARTS = 20_000
"""Maximum number of schemas in a schema with replaced references. Few definitions can produce very many."""


class Unresolvable(Exception):
    """The exception for a reference that cannot be replaced. The text has the place and the reason."""


def target_of(reference: str, root: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference names, which must be a JSON pointer into ``root``.

    Raises:
        Unresolvable: it names nothing, or refers to another document.
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise Unresolvable(f"$ref {reference!r} is not a JSON pointer into the tool's own schema")
    found: Any = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise Unresolvable(f"$ref {reference!r} names nothing in the tool's schema")
    if not isinstance(found, Mapping | bool):
        raise Unresolvable(f"$ref {reference!r} names a value that is no schema")
    return found


def schema_at(reference: str, root: Mapping[str, Any]) -> Schema:
    """Return the schema that a reference names; True, which allows every value, if it names none."""
    try:
        return target_of(reference, root)
    except Unresolvable:
        return True


def fields_at(root: Mapping[str, Any], place: Iterable[str | int]) -> list[str]:
    """Return the names of the properties that an object may have at a place, in order; empty if they are not known.

    Args:
        place: the names of properties, the indices of items, and pydantic's names for the members of unions, which are
            the names of their definitions and part of the same value.
    """
    found = [("", root)]
    for part in place:
        here = [each for inner in found for each in _applied(*inner, root, set())]
        inside = [("", inner) for _, schema in here if (inner := _inner(schema, part)) is not None]
        found = inside or [each for each in here if each[0] == part] or found
    here = [each for inner in found for each in _applied(*inner, root, set())]
    return list(dict.fromkeys(name for _, schema in here for name in schema.get("properties") or ()))


def _applied(name: str, schema: Schema, root: Mapping[str, Any], seen: set[int]) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas of which all or some apply to one value, each with the name of its definition."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    yield name, schema
    for part in (part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())):
        yield from _applied("", part, root, seen)
    if "$ref" in schema:
        yield from _applied(str(schema["$ref"]).rpartition("/")[2], schema_at(schema["$ref"], root), root, seen)


def _inner(schema: Schema, part: str | int) -> Schema | None:
    """Return the schema of a property or an item; None if there is none."""
    if isinstance(part, str):
        properties = schema.get("properties") or {}
        return properties[part] if part in properties else _object(schema.get("additionalProperties"))
    first = schema.get("prefixItems", ())
    return first[part] if part < len(first) else _object(schema.get("items"))


def _object(schema: Schema) -> Schema | None:
    return schema if isinstance(schema, Mapping) else None


def parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """Yield the schemas that apply to a value or its parts, with their paths.

    Values of ``enum`` and similar keywords are not schemas.
    """
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, Mapping):
            for name, inner in value.items():
                yield f".{keyword}.{name}", inner
        elif keyword in SEVERAL and isinstance(value, list):
            for index, inner in enumerate(value):
                yield f".{keyword}[{index}]", inner
        elif keyword in ONE:
            yield f".{keyword}", value


def mapped(schema: Mapping[str, Any], change: Callable[[Schema, str], Schema]) -> dict[str, Any]:
    """Return the schema with each of its `parts_of` replaced by ``change(part, path)``."""
    made = dict(schema)
    for keyword, value in schema.items():
        if keyword in NAMED and isinstance(value, Mapping):
            made[keyword] = {name: change(inner, f".{keyword}.{name}") for name, inner in value.items()}
        elif keyword in SEVERAL and isinstance(value, list):
            made[keyword] = [change(inner, f".{keyword}[{index}]") for index, inner in enumerate(value)]
        elif keyword in ONE:
            made[keyword] = change(value, f".{keyword}")
    return made


def inlined(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without references and definitions: each reference is replaced by its target.

    Raises:
        Unresolvable: a reference is recursive, names nothing here, or there are more than `MAX_PARTS` schemas.
    """
    made: dict[str, Any] = _Inlining(root).inlined(root, "", ())
    return made


class _Inlining:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._parts = 0

    def inlined(self, schema: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        """Return one part of the schema without references.

        Args:
            path: the place of the part in the resulting schema.
            inside: the references that led to it.
        """
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Unresolvable(f"without references the schema has more than {MAX_PARTS} parts")
        if not isinstance(schema, Mapping):
            return schema
        made = mapped(
            {key: value for key, value in schema.items() if key not in DEFINITIONS and key != "$ref"},
            lambda inner, where: self.inlined(inner, path + where, inside),
        )
        if "$ref" not in schema:
            return made
        reference = schema["$ref"]
        if reference in inside or reference == "#":
            raise Unresolvable(f"{path.lstrip('.') or 'the schema'} refers to itself ({reference})")
        target = self.inlined(target_of(reference, self._root), path, (*inside, reference))
        if not made:
            return target
        if isinstance(target, Mapping) and made.keys() <= ANNOTATIONS:
            return {**target, **made}
        return {**{key: made.pop(key) for key in ANNOTATIONS & made.keys()}, "allOf": [target, made]}
