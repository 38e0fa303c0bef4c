"""Embed a JSON Schema in a larger document."""

from __future__ import annotations

import json
from typing import Any


def embedded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that can be part of another document: its ``$defs`` are inlined."""
    defs = schema.get("$defs", {})
    text = json.dumps({key: value for key, value in schema.items() if key != "$defs"})
    for name in defs:
        text = text.replace(f'"$ref": "#/$defs/{name}"', f'"$inline": {json.dumps(name)}')
    result = json.loads(text)
    return _inlined(result, defs, ())  # type: ignore[no-any-return]


def _inlined(node: Any, defs: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """Replace references by the schemas they refer to. Recursive ones become the empty schema, which allows all."""
    if isinstance(node, list):
        return [_inlined(item, defs, inside) for item in node]
    if not isinstance(node, dict):
        return node
    name = node.get("$inline") or str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in defs:
        return {} if name in inside else _inlined(defs[name], defs, (*inside, name))
    return {key: _inlined(value, defs, inside) for key, value in node.items() if key != "discriminator"}
