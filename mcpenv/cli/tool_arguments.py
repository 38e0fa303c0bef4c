"""Arguments of a tool call and other values, as a user writes them: ``key=value`` pairs and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv.errors import ConfigurationError, meant
from mcpenv_client.formats.references import schema_at
from mcpenv_client.types.tools import Tool

Given = tuple[dict[str, Any], dict[str, str]]
"""The arguments given as JSON, and those given as text that is not parsed yet."""


def json_object(option: str, text: str | None) -> dict[str, Any]:
    """Return the object in an option's text; an empty one if the option is not given.

    Raises:
        ConfigurationError: the text is not a JSON object.
    """
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{option} is not a JSON object")
    return value


def given_arguments(
    pairs: Sequence[str], json_arguments: str | None = None, *, option: str = "--json-arguments"
) -> Given:
    """Return the arguments of ``key=value`` pairs and of a JSON object.

    Args:
        option: where the user wrote the JSON, for the error.

    Raises:
        ConfigurationError: they cannot be parsed.
    """
    values, texts = json_object(option, json_arguments), {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"argument {pair!r}: write key=value")
        texts[name] = text
    return values, texts


def tool_arguments(given: Given, tool: Tool) -> dict[str, Any]:
    """Return the call's arguments, with texts parsed by the tool's input schema."""
    values, texts = given
    schema = tool.input_schema
    fields = schema.get("properties", {})
    return {**values, **{name: _value(text, fields.get(name), schema) for name, text in texts.items()}}


def _value(text: str, field: Any, root: Mapping[str, Any]) -> Any:
    kinds = _kinds(field, root)
    if kinds == {"string"} or (kinds == {"string", "null"} and text != "null"):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, dict):
        return set()
    if "$ref" in schema:
        return _kinds(schema_at(schema["$ref"], root), root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(_kinds(option, root) or {"any"} for option in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return {str(one) for one in kind}
    if kind is None and schema.get("enum") and all(isinstance(value, str) for value in schema["enum"]):
        return {"string"}
    return {str(kind)} if kind is not None else set()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def find_tool(tools: Sequence[Tool], name: str, where: str) -> Tool:
    """Return the tool of that name.

    Raises:
        ConfigurationError: there is no such tool.
    """
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        names = [tool.name for tool in tools]
        listed = f"(there are: {', '.join(names) or 'none'}){meant(name, names)}"
        raise ConfigurationError(f"there is no tool {name!r} {where} {listed}")
    return found
