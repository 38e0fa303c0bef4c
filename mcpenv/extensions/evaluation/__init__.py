"""Evaluation: let an agent play the tasks of an environment and compute figures from the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpenv_client.lazy_names import lazy_names

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
else:
    __getattr__, __dir__ = lazy_names(__name__)  # `mcpenv --help` loads only `.commands`
