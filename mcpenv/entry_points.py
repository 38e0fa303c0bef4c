"""Entry points, by which extensions add to mcpenv. Every group is read by the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mcpenv.errors import ConfigurationError


def entries_of(group: str) -> Mapping[str, EntryPoint]:
    """Return the entries of all installed distributions in a group, by name.

    If several distributions have an entry of the same name, mcpenv's own is used, or else the first one that is found
    on `sys.path`, as for modules.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name not in found or entry.module.startswith("mcpenv."):
            found[entry.name] = entry
    return found


def load_entry(entry: EntryPoint, what: str) -> Any:
    """Import the object of an entry.

    Args:
        what: the kind of object with its article, for an error: "the command".

    Raises:
        ConfigurationError: it cannot be loaded (``__cause__``).
    """
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # code of another distribution may raise anything
        raise unusable(entry, what, reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """Return the reason of `unusable` for an exception of an import."""
    return f"cannot be loaded: {type(error).__name__}: {error}"


def unusable(entry: EntryPoint, what: str, reason: str) -> ConfigurationError:
    """Return the error that names an entry, its distribution and the reason why it cannot be used."""
    owner = "" if entry.dist is None else f" of {entry.dist.name}"
    return ConfigurationError(f"{what} {entry.name.replace('.', ' ')}{owner}: {entry.value} {reason}")
