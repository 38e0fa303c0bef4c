"""Recording: episodes on disk, each whole or absent, written beside the steps and readable all the while."""

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
