"""Long outputs of tools: cut for the agent, kept for the episode, searched and paged."""

from __future__ import annotations

from .cutting import MIN_CHARACTERS, LongOutputs

__all__ = ["MIN_CHARACTERS", "LongOutputs"]
