"""Checks: find unsound episodes of a record before they are trained on or reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError, DamagedRecord
from mcpenv.trajectories.episode import RESCORED, RecordedEpisode
from mcpenv.trajectories.reader import Lost, TornTail, read_episodes, segments_of
from mcpenv.trajectories.summary import named_task_of
from mcpenv_client.scores import equal, reaches, worth_of
from mcpenv_client.types.records import Trajectory, summed
from mcpenv_client.types.status import Status, StatusCode

from .costs import Costs
from .duplicates import Duplicates
from .finding import Finding, Kind

_BROKEN = frozenset({StatusCode.ENV_ERROR, StatusCode.JUDGE_ERROR})


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        episodes: number of episodes read, duplicates included.
        tasks: number of their tasks.
        repeated: number of episodes that repeat an earlier one of the same task and seed call by call. They are not
            findings: a deterministic agent produces them. But they are not new data, and not new evidence.
        findings: the findings, by kind in the order of `Kind`.
    """

    episodes: int
    tasks: int
    repeated: int
    findings: list[Finding]

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings by kind; kinds without findings are omitted."""
        counts = Counter(finding.kind for finding in self.findings)
        return {kind.value: counts[kind] for kind in Kind if counts[kind]}

    def without(self, kinds: Collection[Kind]) -> Check:
        """Return the check without findings of these kinds."""
        return replace(self, findings=[finding for finding in self.findings if finding.kind not in kinds])

    def to_plain(self) -> dict[str, Any]:
        """Return the check as plain JSON data."""
        return {
            "episodes": self.episodes,
            "tasks": self.tasks,
            "repeated": self.repeated,
            "counts": self.counts,
            "findings": [finding.to_plain() for finding in self.findings],
        }


def check_record(record: Path | str, *, on_torn: Callable[[TornTail], None] | None = None) -> Check:
    """Check the episodes of a record. They are read once and not kept.

    Damage in one file hides only the rest of that file.

    Args:
        record: a record's folder, or one of its files.
        on_torn: called with the incomplete end of a segment: its writer has crashed or is still writing; None: ignored.

    Raises:
        ConfigurationError: there is no such record, or it has no episode.
    """
    checking = _Checking()
    for segment in segments_of(Path(record)):
        try:
            for episode in read_episodes(segment, on_torn=on_torn, on_lost=checking.lost):
                checking.add(episode, segment.name)
        except DamagedRecord as error:
            text = f"{error.reason}; the episodes after it in this file are not read"
            checking.findings.append(Finding(Kind.DAMAGED, error.place or segment.name, text))
    if not checking.episodes and not checking.findings:
        raise ConfigurationError(f"{record}: there is no episode to check")
    return checking.done()


@dataclass
class _Task:
    """The statuses of a task's episodes so far, with their ids."""

    statuses: Counter[Status] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class _Checking:
    """The check of the episodes seen so far."""

    def __init__(self) -> None:
        self.episodes = 0
        self.findings: list[Finding] = []
        self._duplicates = Duplicates()
        self._costs = Costs()
        self._tasks: dict[tuple[str, str | None], _Task] = {}

    def add(self, episode: RecordedEpisode, place: str) -> None:
        self.episodes += 1
        if not self._duplicates.add(episode, place):
            return
        self._costs.add(episode)
        self._count(episode)
        for kind, text in _faults_of(episode):
            self.findings.append(Finding(kind, episode.id, text, [episode.id], named_task_of(episode.trajectory)))

    def lost(self, segment: Path, lost: Lost) -> None:
        self.findings.append(Finding(Kind.LOST, segment.name, str(lost)))

    def _count(self, episode: RecordedEpisode) -> None:
        task, status = named_task_of(episode.trajectory), episode.trajectory.status
        counted = self._tasks.setdefault((episode.environment.name, task), _Task())
        if status is not None:
            counted.statuses[status] += 1
            if status.code in _BROKEN:
                counted.broken.append(episode.id)

    def done(self) -> Check:
        findings = [*self.findings, *self._duplicates.findings(), *self._always_failing(), *self._costs.findings()]
        order = {kind: number for number, kind in enumerate(Kind)}
        findings.sort(key=lambda finding: order[finding.kind])
        tasks = sum(task is not None for _, task in self._tasks)
        return Check(self.episodes, tasks, self._duplicates.repeated, findings)

    def _always_failing(self) -> Iterator[Finding]:
        for (environment, task), seen in self._tasks.items():
            total = seen.statuses.total()
            if not total or len(seen.broken) < total:
                continue
            status, _ = seen.statuses.most_common(1)[0]
            stage = "" if status.stage is None else f" in its {status.stage.value}"
            each = "its only episode" if total == 1 else f"all {total} episodes"
            text = f"{each} ended by {status.code.value}{stage}"
            yield Finding(Kind.ALWAYS_FAILS, task or environment, text, seen.broken, task)


def _faults_of(episode: RecordedEpisode) -> Iterator[tuple[Kind, str]]:
    trajectory = episode.trajectory
    if not trajectory.steps and not trajectory.dropped:
        yield Kind.NO_CALLS, f"no call before its end ({episode.ending})"
    failed = _failed_last_call(trajectory)
    if failed is not None:
        yield Kind.FAILED_LAST_CALL, f"step {trajectory.steps[-1].call.step}, {failed}; then {episode.ending}"
    yield from _faults_of_reward(episode)


def _failed_last_call(trajectory: Trajectory) -> str | None:
    if not trajectory.steps:
        return None
    call, outcome = trajectory.steps[-1].call, trajectory.steps[-1].outcome
    if outcome.error is not None:
        return f"{call.name}: {outcome.error.error_type.value}"
    return f"{call.name}: is_error" if outcome.result is not None and outcome.result.is_error else None


def _faults_of_reward(episode: RecordedEpisode) -> Iterator[tuple[Kind, str]]:
    trajectory = episode.trajectory
    worth = worth_of(trajectory)
    if trajectory.task is not None and worth is not None:
        floor, full = trajectory.task.reward_range
        if not (reaches(worth, floor) and reaches(full, worth)):
            what = "return" if trajectory.verified is None else "verified value"
            yield Kind.REWARD_OUT_OF_RANGE, f"{what} {worth:g}; reward_range is {floor:g} to {full:g}"
    if trajectory.dropped:
        return
    # A rubric that scored the episode again does not see the reset.
    seen = replace(trajectory, observation=None) if RESCORED in episode.extra else trajectory
    total = summed(seen.reward_values)
    if not equal(total, trajectory.total_reward):
        yield Kind.WRONG_RETURN, f"return {trajectory.total_reward:g}; its rewards add up to {total:g}"
