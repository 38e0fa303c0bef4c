"""Locate an environment's state, so that it can be captured, saved and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpenv.moved import moved_name

from .objects import ObjectWorld
from .world import Tree, World, Worlds, capture

if TYPE_CHECKING:
    from mcpenv.extensions.files_world import FilesWorld
    from mcpenv.extensions.sqlite_world import SQLiteWorld

__all__ = ["FilesWorld", "ObjectWorld", "SQLiteWorld", "Tree", "World", "Worlds", "capture"]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
