"""Spaces of Hugging Face on the command line: loading the library, and consent to run third-party code."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from mcpenv.errors import ConfigurationError


def hub() -> ModuleType:
    """Return `mcpenv.extensions.shipping.hub.transfer`.

    Raises:
        ConfigurationError: its library is not installed.
    """
    try:
        return importlib.import_module("mcpenv.extensions.shipping.hub.transfer")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "huggingface_hub":
            raise
        raise ConfigurationError("Spaces need the package huggingface_hub; run: pip install 'mcpenv[hub]'") from error


def consent(what: str, trusted: bool) -> None:
    """Ask on a terminal for permission to run third-party code with this user's rights, unless ``--trust`` grants it.

    Raises:
        ConfigurationError: permission is denied.
    """
    if trusted:
        return
    warning = f"{what} is code of somebody else, and would run with your rights on this machine"
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{warning}. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
        raise ConfigurationError("not run")
    raise ConfigurationError(f"{warning}; read it first (mcpenv share fork), then say --trust")
