"""mcpenv: tool environments, written once, served to MCP clients and stepped by orchestrators."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

__version__ = _version("mcpenv")


def __getattr__(name: str) -> Any:
    """Load all that is offered when the first of it is asked for: that takes a second, and ``--help`` needs none."""
    if name != "__all__":
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
    public = import_module(f"{__name__}.public")
    offered = {each: getattr(public, each) for each in public.__all__}
    globals().update(offered, __all__=[*offered, "__version__"])
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(f"{__name__}.public").__all__})
