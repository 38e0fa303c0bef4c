"""Options with a JSON object as value."""

from __future__ import annotations

import json
from typing import Any

from mcpenv.errors import ConfigurationError


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
