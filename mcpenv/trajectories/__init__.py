"""The record of episodes on disk. An episode is whole or absent. A thread of its own writes the record."""

from __future__ import annotations

from .blobs import Blobs
from .episode import RecordedEnvironment, RecordedEpisode
from .reader import Lost, TornTail, read_episodes, records_of
from .recorder import Recorder, RecordingSink
from .tool_lists import ToolLists

__all__ = [
    "Blobs",
    "Lost",
    "RecordedEnvironment",
    "RecordedEpisode",
    "Recorder",
    "RecordingSink",
    "ToolLists",
    "TornTail",
    "read_episodes",
    "records_of",
]
