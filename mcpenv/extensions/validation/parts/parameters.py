"""Recognise parameters of tools by name and description: paths, texts to write, commands, addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from mcpenv_client.types.tools import Tool


class Kind(StrEnum):
    """The purpose of a text parameter."""

    PATH = "path"
    TEXT = "text"
    COMMAND = "command"
    CODE = "code"
    URL = "url"


_NAMES = {
    Kind.PATH: re.compile(
        r"(^|_)(path|paths|file|filename|filepath|folder|dir|directory|destination|dest|src)(_|$)|"
        r"^(source|target|name)$",
        re.IGNORECASE,
    ),
    Kind.TEXT: re.compile(r"^(text|content|contents|data|body|value|new|new_text|new_content)$", re.IGNORECASE),
    Kind.COMMAND: re.compile(r"^(command|cmd|commands|shell|bash|script|args)$", re.IGNORECASE),
    Kind.CODE: re.compile(r"^(code|python|program|expression|snippet)$", re.IGNORECASE),
    Kind.URL: re.compile(r"(^|_)(url|uri|href|link|endpoint)$", re.IGNORECASE),
}
_AMBIGUOUS = re.compile(r"^(source|target|name)$", re.IGNORECASE)
_OF_FILES = re.compile(r"\b(path|file|folder|director)", re.IGNORECASE)


def of_kind(tool: Tool, kind: Kind) -> Iterator[str]:
    """Yield the names of a tool's parameters that take a text of this kind."""
    for name, schema in tool.input_schema.get("properties", {}).items():
        if not takes_text(schema):
            continue
        said = f"{schema.get('description', '')} {schema.get('format', '')}"
        if kind is Kind.PATH and _AMBIGUOUS.search(name):
            if _OF_FILES.search(said) or _OF_FILES.search(tool.name):
                yield name
        elif _NAMES[kind].search(name) or (kind is Kind.PATH and re.search(r"\bpath\b", said, re.IGNORECASE)):
            yield name


def takes_text(schema: Any) -> bool:
    """Return True if a parameter with this schema takes any text."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return False
    kind = schema.get("type")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return True
    return any(takes_text(choice) for word in ("anyOf", "oneOf") for choice in schema.get(word, ()))
