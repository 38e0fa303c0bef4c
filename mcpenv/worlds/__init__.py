"""Locate an environment's state, so that it can be captured, saved and restored."""

from __future__ import annotations

from typing import Any

from mcpenv.moved import moved_name

from .files import FilesWorld
from .objects import ObjectWorld
from .sqlite import SQLiteWorld
from .world import Tree, World, Worlds, capture, held

__all__ = ["FilesWorld", "ObjectWorld", "SQLiteWorld", "Tree", "World", "Worlds", "capture", "held"]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
