"""mcpenv_client: the contract of mcpenv, and a light client for its control plane.

Needs pydantic, websockets and httpx only; imports neither ``mcpenv`` nor ``mcp``. `MCPToolClient`, the client of the
agent plane, is in `mcpenv_client.mcp_client`, which is imported on use (``pip install "mcpenv-client[mcp]"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
    from .mcp_client import MCPToolClient as MCPToolClient

    __version__: str
else:
    _get, __dir__ = lazy_names(__name__, "__version__")

    def __getattr__(name: str) -> Any:
        if name == "MCPToolClient":
            from .mcp_client import MCPToolClient  # needs the extra

            return MCPToolClient
        if name == "__version__":
            from importlib.metadata import version  # a fifth of this package's import

            return version("mcpenv-client")
        return _get(name)
