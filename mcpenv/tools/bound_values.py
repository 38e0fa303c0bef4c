"""Check the values that settings bind to arguments of tools. Imported on use: jsonschema takes long to import."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from referencing import Registry
from referencing.exceptions import Unresolvable

from mcpenv.errors import InvalidTool

logger = logging.getLogger("mcpenv")

MAX_RULE = 200
"""Maximum characters of the schema that an error quotes."""


def check_bound(tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise if a value does not fit the input schema of its tool.

    Texts with a placeholder such as ``{workspace}`` are not checked, because their value is known in the episode only.
    If the schema cannot be read, log a warning. The server that runs the tool then checks the values at each call.
    References to other documents are not followed.

    Raises:
        InvalidTool: a value does not fit. The text does not quote the value, which may be a secret.
    """
    fixed = {name: value for name, value in arguments.items() if not (isinstance(value, str) and "{" in value)}
    partial = {**schema, "properties": {name: schema["properties"][name] for name in fixed}, "required": []}
    kind = validator_for(partial, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(partial)
        faults = [fault for fault in kind(partial, registry=Registry()).iter_errors(fixed) if fault.absolute_path]
    except (jsonschema.SchemaError, Unresolvable) as error:
        reason = error.message if isinstance(error, jsonschema.SchemaError) else f"reference {error.ref!r}"
        logger.warning(
            "tool %r: the values bound to its arguments are not checked, because its schema cannot be read (%s)",
            tool,
            reason,
        )
        return
    for fault in faults:
        name, *inner = fault.absolute_path
        place = "".join(f"[{part!r}]" for part in inner)
        rule = f"{fault.validator}: {fault.validator_value!r}"[:MAX_RULE]
        raise InvalidTool(tool, f"the value bound to {name!r}{place} does not fit its schema ({rule})")
