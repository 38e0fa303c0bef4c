"""mcpenv: tool environments, written once, served to MCP clients and stepped by orchestrators."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import mcpenv_client as mcpenv_client  # threads that load modules of ours at once must not meet in it half-made

from .moved import redirect_imports as _redirect_imports

__version__ = _version("mcpenv")
_redirect_imports()

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
else:  # type checkers would take every name to be there

    def __getattr__(name: str) -> Any:
        """Load all that is offered when the first of it is asked for: it takes a second, and ``--help`` needs none."""
        if name != "__all__":
            if name.startswith("__") or not name.isidentifier():
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            if find_spec(f"{__name__}.{name}") is not None:
                return import_module(f"{__name__}.{name}")
        public, here = import_module(f"{__name__}.api"), globals()
        for each in public.__all__:
            here.setdefault(each, getattr(public, each))  # a program may have put something else there
        here["__all__"] = [*public.__all__, "__version__"]
        try:
            return here[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(f"{__name__}.api").__all__})
