"""The prefixes of targets that are imported from other formats, each by a module that is loaded on use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import TargetError

Loader = Callable[..., type[MCPEnvironment]]
"""A function of the text after the prefix; its keyword parameters are the settings."""

IMPORTERS = {
    "gymnasium": "mcpenv.extensions.gymnasium.environment",
    "harbor": "mcpenv.extensions.harbor.target",
    "openapi": "mcpenv.extensions.openapi.environment",
    "tau2": "mcpenv.extensions.tau2.environment",
}
"""The modules by prefix. Each has a function ``load``."""

_PATHS = ("harbor",)
"""The prefixes before a path."""


def prefix_of(target: str) -> str | None:
    """Return the prefix of a target of another format; None if it has none."""
    prefix, colon, _ = target.partition(":")
    return prefix if colon and prefix in IMPORTERS else None


def loader_of(target: str) -> Loader:
    """Return the function that loads a target.

    Raises:
        TargetError: a package that it needs is missing.
    """
    name = IMPORTERS[target.partition(":")[0]]
    try:
        module: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "mcpenv").partition(".")[0] == "mcpenv":
            raise
        raise TargetError(target, f"needs the package {error.name}; run: pip install {error.name}") from error
    loader: Loader = module.load
    return loader


def path_of(target: str) -> Path | None:
    """Return the file or folder that a target of another format names; None if it names none."""
    prefix, _, rest = target.partition(":")
    path = Path(rest).expanduser()
    return Path(path.absolute()) if prefix in _PATHS or (rest and path.is_file()) else None


__all__ = ["IMPORTERS", "Loader", "loader_of", "path_of", "prefix_of"]
