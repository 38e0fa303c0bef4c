"""EpisodeSink: where episodes go when they are over. The core knows no more of recording."""

from __future__ import annotations

from typing import Protocol

from mcpenv_client.records import StepRecord, Trajectory
from mcpenv_client.tools import Mode

from .toolbox import Toolbox


class EpisodeSink(Protocol):
    """Takes episodes. Its methods are called from whichever thread the core runs in, and are quick: they hand over."""

    def spill(self, trajectory: Trajectory, steps: list[StepRecord]) -> None:
        """Take the oldest steps of a running episode, which is longer than its environment keeps."""
        ...

    def episode_over(self, trajectory: Trajectory) -> None:
        """Take an episode that is over, or given up. No step of it follows; nobody changes it any more."""
        ...

    def another(self, tools: Toolbox, mode: Mode) -> EpisodeSink:
        """One for another instance of the environment.

        Args:
            tools: those of that instance.
            mode: which of them are visible.
        """
        ...

    async def written(self, episode_id: str) -> None:
        """Return when what was handed over of that episode is on disk, or cannot be."""
        ...
