"""The record of episodes on disk. Each is whole or absent, is written beside the steps, and can be read at any time."""

from __future__ import annotations

from .episode import RecordedEnvironment, RecordedEpisode
from .reader import TornTail, read_episodes
from .recorder import Recorder, RecordingSink
from .tool_lists import ToolLists

__all__ = [
    "RecordedEnvironment",
    "RecordedEpisode",
    "Recorder",
    "RecordingSink",
    "ToolLists",
    "TornTail",
    "read_episodes",
]
