"""The selection of a record's episodes by conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.scores import reaches


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions for episodes, all of which must hold. None: no condition.

    Attributes:
        id: the episode's id, or a prefix of it.
        task: the task's id.
        split: the task's split.
        min_return: the minimum sum of rewards. Episodes without a reward have none.
        ended: the ending, as in `RecordedEpisode.ending`.
        limit: maximum number of episodes.
    """

    id: str | None = None
    task: str | None = None
    split: str | None = None
    min_return: float | None = None
    ended: str | None = None
    limit: int | None = None

    def of(self, episodes: Iterable[RecordedEpisode]) -> Iterator[RecordedEpisode]:
        """Yield the selected episodes. If one has exactly the given id, it is the only one."""
        found: Iterator[RecordedEpisode] = (episode for episode in episodes if self.means(episode))
        if self.id is not None:
            begun = list(found)
            found = iter([episode for episode in begun if episode.id == self.id] or begun)
        return islice(found, self.limit)

    def means(self, episode: RecordedEpisode) -> bool:
        """Return True if the conditions hold for an episode."""
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
        earned = trajectory.earned
        return earned is not None and reaches(earned, self.min_return)
