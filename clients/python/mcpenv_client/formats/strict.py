"""OpenAI's strict mode: schemas in the subset of JSON Schema that it enforces, and arguments as the tool expects them.

In strict mode every key is required, and no other key is allowed. So an optional key of a tool also accepts null, its
default is stated in its description, and `StrictSchema.restored` removes the null from the model's arguments. A rule
unknown to strict mode that only narrows a value is stated in the description too. A schema that strict mode cannot
express at all is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .references import ANNOTATIONS, DEFINITIONS, Schema, Unresolvable, parts_of, target_of

MAX_PROPERTIES = 5000
MAX_LEVELS = 10
MAX_CHOICES = 1000
"""Limits of OpenAI's API for one schema: properties, levels of nested objects, and values of all ``enum``."""

_KEPT = frozenset(
    {
        "const", "description", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxItems",
        "minimum", "minItems", "multipleOf", "pattern", "title", "type",
    }
)  # fmt: skip
"""The keywords of values that strict mode knows."""

_DESCRIBED = frozenset(
    {
        "contentEncoding", "contentMediaType", "default", "examples", "maxLength", "maxProperties", "minLength",
        "minProperties", "uniqueItems",
    }
)  # fmt: skip
"""The keywords that are written into the description."""

_DROPPED = frozenset({"$comment", "$id", "$schema", "deprecated", "discriminator", "readOnly", "writeOnly"})
"""The keywords that do not restrict the values that a model may give."""

_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
"""The values of ``format`` that strict mode knows. Others are written into the description."""

_TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]+")

_NONE: Any = object()


class NotStrict(Exception):
    """The exception for a schema that strict mode cannot express. The text has the place and the reason."""


class StrictSchema:
    """The strict form of a tool's input schema.

    Attributes:
        schema: the strict schema.

    Raises:
        NotStrict: strict mode cannot express the tool's schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._properties = self._choices = 0
        try:
            self._check_references()
            top = self._resolved(root)
            if not isinstance(top, Mapping) or top.get("type") != "object" or "anyOf" in top or "oneOf" in top:
                raise NotStrict("the arguments are not one object; strict mode allows no anyOf or oneOf at the top")
            self.schema = self._object(top, "", 1)
            for keyword in sorted(DEFINITIONS & root.keys()):
                self.schema[keyword] = {
                    name: self._strict(inner, f"{keyword}.{name}", 1) for name, inner in root[keyword].items()
                }
        except Unresolvable as error:
            raise NotStrict(str(error)) from error
        if self._properties > MAX_PROPERTIES or self._choices > MAX_CHOICES:
            raise NotStrict(
                f"it has {self._properties} properties and {self._choices} values of enum; the limits are "
                f"{MAX_PROPERTIES} and {MAX_CHOICES}"
            )

    def restored(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a strict call without the null of omitted keys."""
        restored: dict[str, Any] = self._without_nulls(self._root, arguments)
        return restored

    # -- the schema

    def _strict(self, schema: Schema, path: str, level: int) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or schema.keys() <= ANNOTATIONS:
            raise NotStrict(f"{path} accepts any value; give it a type")
        if "$ref" in schema:
            return self._reference(schema, path)
        schema = self._without_wrapper(schema, path)
        if "$ref" in schema:
            return self._reference(schema, path)
        kinds = schema.get("type")
        if isinstance(kinds, list) and "object" in kinds:
            return self._object_or_other(schema, [kind for kind in kinds if kind != "object"], path, level)
        if kinds == "object" or "properties" in schema:
            return self._object(schema, path, level)
        made = self._plain(schema, path, "anyOf", "oneOf", "items")
        if "anyOf" in schema or "oneOf" in schema:
            if "anyOf" in schema and "oneOf" in schema:
                raise NotStrict(f"{path} has both anyOf and oneOf")
            branches = schema.get("anyOf", schema.get("oneOf"))
            # Of oneOf, several may not match. The environment refuses such a value, as it does outside strict mode.
            made["anyOf"] = [self._strict(inner, f"{path}.anyOf[{n}]", level) for n, inner in enumerate(branches)]
        elif "type" not in schema:
            made["type"] = self._type_of_choices(schema, path)
        if "array" in (kinds if isinstance(kinds, list) else [kinds]):
            if not isinstance(schema.get("items"), Mapping):
                raise NotStrict(f"{path} is a list of any values; give items a schema")
            made["items"] = self._strict(schema["items"], f"{path}.items", level)
        return made

    def _object_or_other(self, schema: Mapping[str, Any], others: list[str], path: str, level: int) -> dict[str, Any]:
        beside = {key: value for key, value in schema.items() if key in ANNOTATIONS}
        rest = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        branches = [self._object({**rest, "type": "object"}, path, level)]
        of_objects = {"additionalProperties", "properties", "required"}
        for other in others:
            branch = {key: value for key, value in rest.items() if key not in of_objects}
            branches.append(self._strict({**branch, "type": other}, path, level))
        return {**self._plain(beside, path), "anyOf": branches}

    def _reference(self, schema: Mapping[str, Any], path: str) -> dict[str, Any]:
        reference = schema["$ref"]
        if reference != "#" and not _DEFINITION.fullmatch(reference):
            raise NotStrict(f"{path} refers to {reference!r}, which is no definition; inline the references")
        target_of(reference, self._root)
        beside = schema.keys() - {"$ref"}
        if beside - ANNOTATIONS:
            raise NotStrict(f"{path} has {min(beside - ANNOTATIONS)} beside $ref; inline the references")
        made = self._plain({key: value for key, value in schema.items() if key != "$ref"}, path)
        # Strict mode allows no other keyword next to a reference.
        return {**made, "anyOf": [{"$ref": reference}]} if made else {"$ref": reference}

    def _object(self, schema: Mapping[str, Any], path: str, level: int) -> dict[str, Any]:
        where = path or "the arguments"
        if level > MAX_LEVELS:
            raise NotStrict(f"{where}: objects are nested more than {MAX_LEVELS} levels deep")
        properties = schema.get("properties")
        if schema.get("additionalProperties", False) is not False or (path and properties is None):
            raise NotStrict(f"{where} may have keys of any name; list the keys in properties")
        made = self._plain(schema, path, "additionalProperties", "properties", "required")
        named = {} if properties is None else dict(properties)
        required = list(schema.get("required", ()))
        for name in required:
            if name not in named:
                raise NotStrict(f"{where}: the required key {name!r} is not in properties")
        self._properties += len(named)
        made["properties"] = {
            name: self._property(inner, f"{path}.{name}".lstrip("."), level, name in required)
            for name, inner in named.items()
        }
        return {**made, "type": "object", "required": list(named), "additionalProperties": False}

    def _property(self, schema: Schema, path: str, level: int, required: bool) -> dict[str, Any]:
        made = self._strict(schema, path, level + 1)
        if required or self._accepts_null(schema):
            if not required and self._default(schema) is _NONE:
                raise NotStrict(f"{path} may be null and may be left out, which strict mode cannot tell apart")
            return made
        hoisted: dict[str, Any] = {key: made.pop(key) for key in ("title", "description") if key in made}
        branches = made["anyOf"] if made.keys() == {"anyOf"} else [made]
        return {**hoisted, "anyOf": [*branches, {"type": "null"}]}

    def _plain(self, schema: Mapping[str, Any], path: str, *without: str) -> dict[str, Any]:
        """Return the keywords of a schema except some; keywords that strict mode lacks go to the description."""
        made: dict[str, Any] = {}
        described = []
        for keyword, value in schema.items():
            if keyword in without or keyword in _DROPPED or keyword in DEFINITIONS or keyword.startswith("x-"):
                continue
            if keyword in _DESCRIBED or (keyword == "format" and value not in _FORMATS):
                described.append(f"{keyword}: {json.dumps(value, ensure_ascii=False)}")
            elif keyword in _KEPT:
                made[keyword] = value
            else:
                raise NotStrict(f"{path or 'the arguments'} has the keyword {keyword}, which strict mode does not know")
        self._choices += len(made.get("enum", ()))
        if described:
            made["description"] = " ".join([*filter(None, [made.get("description")]), f"({'; '.join(described)})"])
        return made

    def _type_of_choices(self, schema: Mapping[str, Any], path: str) -> str | list[str]:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
        kinds = sorted({kind for choice in choices for kind in _TYPES if kind != "number" and _is(choice, kind)})
        if not kinds or {"array", "object"} & set(kinds):
            raise NotStrict(f"{path} accepts any value; give it a type")
        return kinds[0] if len(kinds) == 1 else kinds

    def _without_wrapper(self, schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the schema with an ``allOf`` of one schema, which adds only annotations, replaced by that schema."""
        parts = schema.get("allOf")
        if parts is None:
            return schema
        beside = {key: value for key, value in schema.items() if key != "allOf"}
        if len(parts) != 1 or not isinstance(parts[0], Mapping) or beside.keys() - ANNOTATIONS:
            raise NotStrict(f"{path} has the keyword allOf, which strict mode does not know")
        return {**parts[0], **beside}

    def _check_references(self) -> None:
        """Raise if a definition is nothing but itself, so that following its references would never end."""
        over: set[str] = set()

        def follow(schema: Schema, inside: tuple[str, ...]) -> None:
            if not isinstance(schema, Mapping):
                return
            reference = schema.get("$ref")
            if reference in inside:
                raise NotStrict(f"$ref {reference!r} leads to itself")
            if isinstance(reference, str) and reference not in over:
                follow(target_of(reference, self._root), (*inside, reference))
                over.add(reference)
            for keyword in ("allOf", "anyOf", "oneOf"):
                for branch in schema.get(keyword, ()):
                    follow(branch, inside)

        def walk(schema: Schema) -> None:
            if isinstance(schema, Mapping):
                follow(schema, ())
                for _, inner in parts_of(schema):
                    walk(inner)
                for keyword in DEFINITIONS & schema.keys():
                    for inner in schema[keyword].values():
                        walk(inner)

        walk(self._root)

    # -- values

    def _default(self, schema: Schema) -> Any:
        resolved = self._resolved(schema)
        return resolved.get("default", _NONE) if isinstance(resolved, Mapping) else _NONE

    def _resolved(self, schema: Schema) -> Schema:
        """Return the schema that references lead to, combined with the annotations next to them.

        Raises:
            Unresolvable: they lead nowhere, or to themselves.
        """
        seen: list[str] = []
        while isinstance(schema, Mapping):
            if "$ref" in schema:
                if schema["$ref"] in seen:
                    raise Unresolvable(f"$ref {schema['$ref']!r} leads to itself")
                seen.append(schema["$ref"])
                beside = {key: value for key, value in schema.items() if key != "$ref"}
                target = target_of(schema["$ref"], self._root)
                schema = {**target, **beside} if isinstance(target, Mapping) else target
            elif "allOf" in schema:
                schema = self._without_wrapper(schema, "it")
            else:
                break
        return schema

    def _branches(self, schema: Mapping[str, Any]) -> Iterator[Schema]:
        yield from schema.get("anyOf", schema.get("oneOf", ()))

    def _accepts_null(self, schema: Schema) -> bool:
        return self._fits(schema, None)

    def _without_nulls(self, schema: Schema, value: Any) -> Any:
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping):
            return value
        for branch in self._branches(schema):
            restored = self._without_nulls(branch, value)
            if self._fits(branch, restored):
                return restored
        if isinstance(value, list):
            return [self._without_nulls(schema.get("items", True), item) for item in value]
        if isinstance(value, dict):
            properties, required = schema.get("properties", {}), schema.get("required", ())
            return {
                name: self._without_nulls(properties.get(name, True), item)
                for name, item in value.items()
                if item is not None or name in required or name not in properties or self._means_null(properties[name])
            }
        return value

    def _means_null(self, schema: Schema) -> bool:
        """Return True if null is a value of an optional key, not the mark of an omitted key."""
        return self._accepts_null(schema) and self._default(schema) is not None

    def _fits(self, schema: Schema, value: Any) -> bool:
        """Return True if the value has the type, the choices and the keys of a schema. Limits are not checked."""
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping):
            return bool(schema)
        kinds = schema.get("type")
        if kinds is not None and not any(_is(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds])):
            return False
        if "const" in schema and not _equal(value, schema["const"]):
            return False
        if "enum" in schema and not any(_equal(value, choice) for choice in schema["enum"]):
            return False
        branches = list(self._branches(schema))
        if branches and not any(self._fits(branch, value) for branch in branches):
            return False
        if isinstance(value, list):
            return all(self._fits(schema.get("items", True), item) for item in value)
        if isinstance(value, dict) and "properties" in schema:
            known = schema["properties"]
            return all(name in value for name in schema.get("required", ())) and all(
                name in known and self._fits(known[name], item) for name, item in value.items()
            )
        return True


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, ())) and (kind == "boolean") == isinstance(value, bool)


def _equal(value: Any, choice: Any) -> bool:
    """Return True if two JSON values are equal. Python's True equals 1."""
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)
