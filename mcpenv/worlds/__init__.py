"""Locate an environment's state, so that it can be captured, saved and restored."""

from __future__ import annotations

from mcpenv.extensions.git_world.world import GitWorld

from .files import FilesWorld
from .objects import ObjectWorld
from .sqlite import SQLiteWorld
from .world import Tree, World, Worlds, capture, held

__all__ = ["FilesWorld", "GitWorld", "ObjectWorld", "SQLiteWorld", "Tree", "World", "Worlds", "capture", "held"]
