"""Exports: convert episodes to formats that trainers and viewers read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .anthropic import anthropic_row as anthropic_row
    from .atif import atif_document as atif_document
    from .openai import openai_row as openai_row

_MODULES = {"anthropic_row": "anthropic", "atif_document": "atif", "openai_row": "openai"}


def __getattr__(name: str) -> Any:
    """Load a function on first use: `mcpenv --help` loads only `.commands`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = ["anthropic_row", "atif_document", "openai_row"]
