"""Check the values that settings bind to arguments of tools. Imported on use: jsonschema takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from mcpenv.errors import InvalidTool


def check_bound(tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise if a value does not fit the input schema of its tool.

    Texts with a placeholder such as ``{workspace}`` are not checked: their value is known in the episode only.

    Raises:
        InvalidTool: a value does not fit. The text does not quote the value, which may be a secret.
    """
    fixed = {name: value for name, value in arguments.items() if not (isinstance(value, str) and "{" in value)}
    partial = {**schema, "properties": {name: schema["properties"][name] for name in fixed}, "required": []}
    for fault in jsonschema.Draft202012Validator(partial).iter_errors(fixed):
        if fault.absolute_path:
            place = "".join(f"[{part!r}]" for part in list(fault.absolute_path)[1:])
            rule = f"{fault.validator}: {fault.validator_value!r}"
            raise InvalidTool(
                tool, f"the value bound to {str(fault.absolute_path[0])!r}{place} does not fit its schema ({rule})"
            )


__all__ = ["check_bound"]
