"""Worlds: where an environment's state is, so that it can be looked at, held and brought back."""

from __future__ import annotations

from .files import FilesWorld
from .objects import ObjectWorld
from .sqlite import SQLiteWorld
from .world import Tree, World, Worlds, capture, held

__all__ = ["FilesWorld", "ObjectWorld", "SQLiteWorld", "Tree", "World", "Worlds", "capture", "held"]
