"""Settings: the values on which the results of an evaluation depend, as stored in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mcpenv.errors import ConfigurationError

SETTINGS = "settings.json"

_SHOWN = 60


class Difference(NamedTuple):
    """A setting that differs between two evaluations; ``name`` has dots between nested names."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} was {shown(self.before)} and is {shown(self.now)}"


def read_settings(directory: Path) -> dict[str, Any]:
    """Return the settings in an evaluation's folder.

    Raises:
        FileNotFoundError: the folder has none.
        ConfigurationError: the file is not a JSON object.
    """
    file = directory / SETTINGS
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigurationError(f"{file} is not a JSON object, so these are no settings of an evaluation")
    return settings


def differences(before: Any, now: Any, name: str = "") -> Iterator[Difference]:
    """Yield the settings that differ, in their order. A setting that is missing counts as null.

    A missing name of an agent is no difference: older versions wrote none, and it follows from the command.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif before != now and not (name == "agent.name" and None in (before, now)):
        yield Difference(name, before, now)


def shown(value: Any) -> str:
    """Return a setting as JSON, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
