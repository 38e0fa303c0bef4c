"""The request of a call: parameters, forms and files as an OpenAPI document says that they are sent."""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import httpx2
from fastmcp.exceptions import ToolError
from fastmcp.server.providers.openapi import OpenAPITool
from fastmcp.utilities.openapi import HTTPRoute
from fastmcp.utilities.openapi.director import RequestDirector
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from .document import has_form, is_json, media_type

_UPLOAD = {
    "description": "The file: its text, or an object with its text or base64, and its file name.",
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "filename": {"type": "string"},
                "text": {"type": "string"},
                "base64": {"type": "string", "contentEncoding": "base64"},
            },
            "additionalProperties": False,
        },
    ],
}


def files_of(tool: OpenAPITool, route: HTTPRoute) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments that are files of a form, or arrays of files: their schemas for agents, and media types."""
    kind, _, encodings = _body_of(route)
    schemas: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    if kind != "multipart/form-data":
        return schemas, kinds
    definitions = tool.parameters.get("$defs", {})
    for name, schema in tool.parameters.get("properties", {}).items():
        place = route.parameter_map.get(name, {})
        if place.get("location") != "body":
            continue
        said = _said_kind(encodings.get(place["openapi_name"], {}))
        array = _resolved(schema, definitions)
        item = array.get("items", {}) if isinstance(array, dict) and array.get("type") == "array" else None
        if _is_file(schema if item is None else item, definitions, said):
            schemas[name] = _UPLOAD if item is None else {**array, "items": _UPLOAD}
            one = _resolved(schema if item is None else item, definitions)
            kinds[name] = said or one.get("contentMediaType", "")
    return schemas, kinds


def _body_of(route: HTTPRoute) -> tuple[str, Any, Mapping[str, Mapping[str, Any]]]:
    """Return the media type of a route's body, or nothing, with its schema and the encodings of its properties."""
    body = route.request_body
    if body is None or not body.content_schema:
        return "", {}, {}
    kind, schema = next(iter(body.content_schema.items()))
    return media_type(kind), schema, body.encoding.get(kind, {})


def _said_kind(encoding: Mapping[str, Any]) -> str:
    return str(encoding.get("contentType") or "")


_TEXTS = re.compile(r"text/.*|application/(json|xml|.+\+json|.+\+xml|x-www-form-urlencoded)")


def _is_file(schema: Any, definitions: Mapping[str, Any], said: str = "") -> bool:
    """Return True if a part is a file, by its schema or by the media types that are said of it."""
    schema = _resolved(schema, definitions)
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "binary" or "contentMediaType" in schema:
        return True
    alternatives = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())]
    if said and not alternatives and "properties" not in schema and schema.get("type", "string") == "string":
        return not any(_TEXTS.fullmatch(media_type(each)) for each in said.split(","))
    return any(_is_file(each, definitions) for each in alternatives)


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref", "") if isinstance(schema, dict) else ""
    return definitions.get(reference.removeprefix("#/$defs/")) if reference else schema


class _Files(list[Any]):
    """The parts of an array of files."""


class _Form(dict[str, Any]):
    """The parts of a form by name: a list for each, of file name, content and media type."""

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Return each part with its name."""
        return [(name, each) for name, parts in super().items() for each in parts]


class Director(RequestDirector):
    """Makes requests, also of objects and arrays for which FastMCP would send Python's text."""

    def build(self, *arguments: Any, **options: Any) -> httpx2.Request:
        """Return the request of a call.

        Raises:
            ToolError: a value has no form, such as ``..`` as a part of the path.
        """
        try:
            return super().build(*arguments, **options)
        except (ValueError, httpx2.InvalidURL) as error:
            raise ToolError(f"the arguments cannot be sent: {error}") from error

    def _unflatten_arguments(self, route: HTTPRoute, flat_args: dict[str, Any]) -> Any:
        path, query, headers, cookies, body = super()._unflatten_arguments(route, flat_args)
        for place, values in {"path": path, "query": query, "header": headers, "cookie": cookies}.items():
            styles = {each.name: each.style for each in route.parameters if each.location == place}
            values.update({name: _parameter(value, styles.get(name)) for name, value in values.items()})
        cookies = {name: _joined(value) for name, value in cookies.items()}
        for name, value in cookies.items():
            if ";" in value:
                raise ValueError(f"Cookie {name!r} cannot contain ';', which begins another cookie")
        kind, _, encodings = _body_of(route)
        if kind in _FORMS and body is not None:
            if not isinstance(body, dict):
                raise ValueError(f"the body is {type(body).__name__}, and must be an object of the fields of a form")
            body = _FORMS[kind]({**body, **_nulls(route, flat_args)}, encodings)
        elif isinstance(body, dict | list) and kind and not has_form(kind, {"type": "object"}):
            raise ValueError(f"the body can only be a text of {kind}")
        return path, query, headers, cookies, body


OF_JSON = "json"
"""The style of a parameter with ``content`` of JSON, in place of one of OpenAPI."""


def _json_text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a scalar, or the JSON text of what is none."""
    return _json_text(value) if value is None or isinstance(value, dict | list) else value


def _parameter(value: Any, style: str | None) -> Any:
    """Return a parameter of a path, a query, a header or a cookie, whose items are scalars."""
    if style == OF_JSON:
        return _json_text(value)
    if isinstance(value, dict):
        return _leaves(value) if style == "deepObject" else {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _joined(value: Any) -> str:
    """Return the text of a cookie, with commas between the keys and values of an object, or the items of an array."""
    items = [each for pair in value.items() for each in pair] if isinstance(value, dict) else value
    return ",".join(map(_text, items if isinstance(items, list) else [items]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json_text(value)


def _leaves(value: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """Return the scalars inside a value, by the keys that lead to each: ``a][b`` for ``{"a": {"b": 1}}``."""
    found: dict[str, Any] = {}
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if each and isinstance(each, dict | list):
            found |= {f"{key}][{inner}": leaf for inner, leaf in _leaves(each).items()}
        else:
            found[str(key)] = _plain(each)
    return found


def _is_complex(value: Any) -> bool:
    """Return True for an object, and for an array of objects or arrays."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict | list) for each in value))


def _field(name: str, value: Any, encoding: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the texts of a field of a form, each with its media type.

    Raises:
        ValueError: an object has a media type that is not JSON's.
    """
    said = next((each.strip() for each in _said_kind(encoding).split(",") if "*" not in each), "")
    if is_json(said) or _is_complex(value):
        if said and not is_json(said) and media_type(said) != "text/plain":
            raise ValueError(f"{name} can only be a text of {said}")
        return [(_json_text(value), said or "application/json")]
    each = value if isinstance(value, list) else [value]
    texts = [_text(item) for item in each]
    if isinstance(value, list) and encoding.get("explode") is False:
        texts = [_DELIMITERS.get(encoding.get("style", "form"), ",").join(texts)]
    return [(text, said or None) for text in texts]


_DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|"}


def _multipart(body: Mapping[str, Any], encodings: Mapping[str, Mapping[str, Any]]) -> _Form:
    """Return the parts of ``multipart/form-data``."""
    form = _Form()
    for name, value in body.items():
        if isinstance(value, _Files | tuple):
            form[name] = value if isinstance(value, _Files) else [value]
        else:
            form[name] = [(None, text, kind) for text, kind in _field(name, value, encodings.get(name, {}))]
    return form


def _urlencoded(body: Mapping[str, Any], encodings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of ``application/x-www-form-urlencoded``. FastMCP encodes those that are said to be JSON."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        encoding = encodings.get(name, {})
        if encoding.get("style") == "deepObject" and value and isinstance(value, dict | list):
            fields |= {f"{name}[{key}]": leaf for key, leaf in _leaves(value).items()}
        elif is_json(_said_kind(encoding)):
            fields[name] = value
        else:
            fields[name] = [text for text, _ in _field(name, value, encoding)]
    return fields


_FORMS = {"multipart/form-data": _multipart, "application/x-www-form-urlencoded": _urlencoded}


def _nulls(route: HTTPRoute, arguments: Mapping[str, Any]) -> dict[str, None]:
    """Return the fields of a form that are null, which FastMCP leaves out, and whose schema allows null."""
    properties = route.flat_param_schema.get("properties", {})
    schema = Draft202012Validator(route.flat_param_schema)
    return {
        place["openapi_name"]: None
        for name, place in route.parameter_map.items()
        if place["location"] == "body" and name in arguments and arguments[name] is None
        if properties.get(name) and schema.evolve(schema=properties[name]).is_valid(None)
    }


def sent_value(name: str, value: Any, kinds: str) -> Any:
    """Return what is sent for a file, or for an array of files."""
    return _Files(_part(name, each, kinds) for each in value) if isinstance(value, list) else _part(name, value, kinds)


def _part(name: str, value: Any, kinds: str) -> Any:
    """Return the file name, content and type of an uploaded file, whose type is one of some, or a pattern."""
    given = {"text": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        return given
    if "base64" in given:
        try:
            content = base64.b64decode(given["base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise ToolError(f"{name}.base64 is no base64: {error}") from error
    else:
        content = str(given.get("text", "")).encode("utf-8", "replace")
    filename = str(given.get("filename") or name)
    known = [kind.strip() for kind in kinds.split(",") if kind]
    guessed = mimetypes.guess_type(filename)[0]
    if guessed and any(fnmatchcase(guessed, kind) for kind in known):
        return filename, content, guessed
    return filename, content, next((kind for kind in known if "*" not in kind), "application/octet-stream")
