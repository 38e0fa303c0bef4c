"""An environment's world in a git repository."""

from __future__ import annotations

from .world import GitWorld

__all__ = ["GitWorld"]
