"""mcpenv: tool environments, written once, served to MCP clients and stepped by orchestrators."""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from mcpenv_client.lazy_names import lazy_names as _lazy_names

from .moved import NAMES as _MOVED
from .moved import moved_name as _moved_name
from .moved import redirect_imports as _redirect_imports

__version__ = _version("mcpenv")
_redirect_imports()

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
    from .worlds import FilesWorld as FilesWorld  # griffe takes no name from a * that is not imported at runtime
    from .worlds import SQLiteWorld as SQLiteWorld
else:  # type checkers would take every name to be there
    # Loading all takes a second, and `mcpenv --help` needs none of it.
    _get, __dir__ = _lazy_names(__name__, "__version__")

    def __getattr__(name: str) -> Any:
        return _moved_name(__name__, name) if f"{__name__}.{name}" in _MOVED else _get(name)
