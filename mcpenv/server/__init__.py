"""The server: every plane of an environment over HTTP and WebSocket. These are the public names to embed it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import EnvServer, create_app
    from .config import ConcurrencyConfig, ServerConfig
    from .security.control_auth import AgentTokens
    from .serve import serving

__all__ = ["AgentTokens", "ConcurrencyConfig", "EnvServer", "ServerConfig", "create_app", "serving"]

_MODULES = {
    "AgentTokens": "security.control_auth",
    "ConcurrencyConfig": "config",
    "EnvServer": "app",
    "ServerConfig": "config",
    "create_app": "app",
    "serving": "serve",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: most of them load FastMCP, which the settings do not need."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
