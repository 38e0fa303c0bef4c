"""The selection of a record's episodes by conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.scores import reaches

from .reviews import Said
from .where import EVERYTHING, Condition, forms_of, row_of


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
        where: a further condition.
        reviews: what people said of the episodes.
    """

    id: str | None = None
    task: str | None = None
    split: str | None = None
    min_return: float | None = None
    ended: str | None = None
    limit: int | None = None
    where: Condition = EVERYTHING
    reviews: Said = field(default_factory=dict)

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
        earned = trajectory.earned
        if self.min_return is not None and (earned is None or not reaches(earned, self.min_return)):
            return False
        return self.where == EVERYTHING or bool(
            self.where.holds(row_of(episode, self.reviews.get(episode.id, ())), _Searched(episode))
        )


class _Searched:
    """The texts of an episode. Its line is written only if one is asked for."""

    def __init__(self, episode: RecordedEpisode) -> None:
        self._episode = episode
        self._line: str | None = None

    def __call__(self, text: str) -> bool:
        if self._line is None:
            self._line = self._episode.line().decode().casefold()
        return any(form in self._line for form in forms_of(text))
