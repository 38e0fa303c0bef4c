"""EpisodeSink: where episodes go when they are over. The core knows no more of recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mcpenv_client.records import StepRecord, Trajectory
from mcpenv_client.tools import Mode

if TYPE_CHECKING:
    from .toolbox import Toolbox


class SpilledSteps(Protocol):
    """The oldest steps of an episode, as a sink holds them. They do not change, and pickle."""

    @property
    def bytes(self) -> int:
        """About how much memory they take."""
        ...


class EpisodeSink(Protocol):
    """Takes episodes. Its methods are called from whichever thread the core runs in, and are quick: they hand over."""

    def spill(self, trajectory: Trajectory, steps: Sequence[StepRecord]) -> None:
        """Take the oldest steps of a running episode, which is longer than its environment keeps."""
        ...

    def spilled(self, trajectory: Trajectory) -> SpilledSteps | None:
        """What it was given of a running episode by `spill`, for one that will continue it."""
        ...

    def resume(self, trajectory: Trajectory, spilled: SpilledSteps) -> None:
        """An episode has begun that continues another, of which a sink held ``spilled``."""
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
