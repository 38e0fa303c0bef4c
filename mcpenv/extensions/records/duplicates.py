"""Duplicates: episodes that a record contains more than once, and episodes that repeat another call by call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv.trajectories.summary import named_task_of
from mcpenv_client.fingerprint import canonical, facts_of_reset, facts_of_step
from mcpenv_client.types.records import Trajectory

from .finding import Finding, Kind


@dataclass
class _Original:
    """The first occurrence of an episode, and the later ones."""

    id: str
    task: str | None
    place: str
    again: list[tuple[str, str]] = field(default_factory=list)


class Duplicates:
    """The episodes seen so far, by id and by content with times. Keeps two hashes of each episode.

    Attributes:
        repeated: number of episodes that repeat an earlier one of the same task and seed call by call, with the same
            results. They are not faults: a deterministic agent produces them.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._by_id: dict[str, _Original] = {}
        self._by_times: dict[bytes, _Original] = {}
        self._contents: set[bytes] = set()

    def add(self, episode: RecordedEpisode, place: str) -> bool:
        """Add an episode; return True if it is not a duplicate.

        Args:
            place: the name of the file that has it.
        """
        times = _times_of(episode.trajectory)
        original = self._by_id.get(episode.id)
        if original is None and times is not None:
            original = self._by_times.get(times)
        if original is not None:
            original.again.append((episode.id, place))
            return False
        original = self._by_id[episode.id] = _Original(episode.id, named_task_of(episode.trajectory), place)
        if times is not None:
            self._by_times[times] = original
        content = _content_of(episode)
        if content is not None:
            self.repeated += content in self._contents
            self._contents.add(content)
        return True

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each episode that has duplicates."""
        for original in self._by_id.values():
            if not original.again:
                continue
            copies = sorted({name for name, _ in original.again} - {original.id})
            places = ", ".join(dict.fromkeys([original.place, *(place for _, place in original.again)]))
            named = f", copied as {', '.join(copies)}" if copies else ""
            text = f"{len(original.again) + 1} times in the record{named} ({places})"
            yield Finding(Kind.DUPLICATE, original.id, text, [original.id, *copies], original.task)


def _times_of(trajectory: Trajectory) -> bytes | None:
    """Return a hash of the calls with their times, which no two episodes share; None if the record has no times."""
    if not trajectory.started_at:
        return None
    task = trajectory.task
    facts = {
        "task": None if task is None else task.name,
        "seed": trajectory.seed,
        # A fork has the start and the first steps of another episode, but an end of its own.
        "times": [trajectory.started_at, trajectory.ended_at],
        "steps": [[step.started_at, step.call.name, step.call.arguments] for step in trajectory.steps],
    }
    return hashlib.sha256(canonical(facts)).digest()


def _content_of(episode: RecordedEpisode) -> bytes | None:
    """Return a hash of the content without times; None for an episode without calls."""
    trajectory, observations = episode.trajectory, episode.extra.get(OBSERVATIONS, {})
    if not trajectory.steps:
        return None
    task = trajectory.task
    hashed = hashlib.sha256(
        canonical({"task": None if task is None else task.name, "seed": trajectory.seed} | facts_of_reset(trajectory))
    )
    for step in trajectory.steps:
        facts = facts_of_step(step, observations.get(str(step.call.step)))
        hashed.update(canonical({"name": step.call.name, "arguments": step.call.arguments} | facts))
    return hashed.digest()
