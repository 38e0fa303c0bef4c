"""Selection: which episodes of a record somebody wants to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from .episode import RecordedEpisode
from .summary import return_of


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that all must hold; None: any.

    Attributes:
        id: the episode's id, or its beginning.
        task: the task's id.
        split: the task's split.
        min_return: the least sum of rewards; episodes that were not scored have none.
        ended: how they ended, as `RecordedEpisode.ending` says.
        limit: at most so many.
    """

    id: str | None = None
    task: str | None = None
    split: str | None = None
    min_return: float | None = None
    ended: str | None = None
    limit: int | None = None

    def of(self, episodes: Iterable[RecordedEpisode]) -> Iterator[RecordedEpisode]:
        """Those that it means. An episode whose id is the one that was given is the only one of its beginning."""
        found: Iterator[RecordedEpisode] = (episode for episode in episodes if self.means(episode))
        if self.id is not None:
            begun = list(found)
            found = iter([episode for episode in begun if episode.id == self.id] or begun)
        return islice(found, self.limit)

    def means(self, episode: RecordedEpisode) -> bool:
        """Whether the conditions hold."""
        trajectory, task = episode.trajectory, episode.trajectory.task
        if self.id is not None and not episode.id.startswith(self.id):
            return False
        if self.task is not None and (task is None or task.id != self.task):
            return False
        if self.split is not None and (task is None or task.split != self.split):
            return False
        if self.ended is not None and episode.ending != self.ended:
            return False
        if self.min_return is None:
            return True
        earned = return_of(trajectory)
        return earned is not None and earned >= self.min_return
