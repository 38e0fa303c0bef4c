"""An environment's world in a folder."""

from __future__ import annotations

from .world import FilesWorld

__all__ = ["FilesWorld"]
