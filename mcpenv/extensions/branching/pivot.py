"""The command ``mcpenv trajectories pivot``: the steps of episodes whose branches end differently most."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.output import Page, note_lost, note_torn, print_json, print_table, printable, quiet_logs
from mcpenv.errors import ConfigurationError
from mcpenv.trajectories import RecordedEpisode, read_episodes
from mcpenv_client.scores import branching_point, score_of, whole_status
from mcpenv_client.types.records import Fork, StepRecord, Trajectory

_WIDTH = 40
"""Maximum characters of a call in a line."""


@dataclass(frozen=True)
class Pivot:
    """A step of an episode, and how its branches ended.

    Attributes:
        episode: the id of the episode.
        step: the number of steps before the branches.
        branches: the number of its branches that were scored.
        mean, deviation: the mean and the (population) standard deviation of their returns.
        worst, best: the lowest and the highest return.
        worst_call, best_call: the first own call of those branches; None if such a branch has none.
        parent: the return of the episode itself; None if it is not in the record, or was not scored.
        parent_call: its call after the step.
    """

    episode: str
    step: int
    branches: int
    mean: float
    deviation: float
    worst: float
    best: float
    worst_call: str | None
    best_call: str | None
    parent: float | None
    parent_call: str | None


def pivots_of(episodes: Iterable[RecordedEpisode]) -> list[Pivot]:
    """Return the branching points with at least two scored branches, those first whose returns deviate most.

    Points of the same deviation are in the order of the record.
    """
    parents: dict[str, tuple[float | None, dict[int, str]]] = {}
    points: dict[Fork, list[tuple[float, str | None]]] = {}
    for episode in episodes:
        trajectory = episode.trajectory
        score = _score_of(trajectory)
        calls = {step.call.step: _call(step) for step in trajectory.steps}
        parents[episode.id] = score, calls
        point = branching_point(trajectory)
        if point is not None and score is not None:
            points.setdefault(point, []).append((score, calls.get(point.step + 1)))
    found = [
        _pivot(point, ends, *parents.get(point.episode_id, (None, {})))
        for point, ends in points.items()
        if len(ends) > 1
    ]
    return sorted(found, key=lambda each: -each.deviation)


def _pivot(point: Fork, ends: Sequence[tuple[float, str | None]], parent: float | None, calls: dict[int, str]) -> Pivot:
    scores = [score for score, _ in ends]
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    (worst, worst_call), (best, best_call) = (choose(ends, key=lambda end: end[0]) for choose in (min, max))
    own = calls.get(point.step + 1)
    return Pivot(
        point.episode_id, point.step, len(ends), mean, deviation, worst, best, worst_call, best_call, parent, own
    )


def _score_of(trajectory: Trajectory) -> float | None:
    status = whole_status(trajectory)
    return score_of(trajectory) if status is not None and status.usable else None


def _call(step: StepRecord) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in step.call.arguments.items())
    return f"{step.call.name}({arguments})"


def pivot(
    record: Path,
    /,
    *,
    limit: int = 20,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Find the steps whose branches end differently most: the decisions on which the return depends.

    Each line is a step of an episode with at least two scored branches: the deviation of their returns, and the first
    call of the best and of the worst one. With --json also the return and the next call of the episode itself, if the
    record has it: record the branches to the folder of their episode.

    Args:
        record: Folder of a record with branches, or one of its files.
        limit: Maximum number of steps.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    found = pivots_of(read_episodes(record, on_torn=note_torn, on_lost=note_lost))
    if not found:
        raise ConfigurationError(f"{record}: there is no step with two scored branches; mcpenv branch makes some")
    if as_json:
        print_json({"points": len(found), "pivots": [asdict(each) for each in found[:limit]]})
        return 0
    headings = ("episode", "step", "branches", "deviation", "mean", "worst", "best", "worst call", "best call")
    rows = [_row(each) for each in found[:limit]]
    print_table(Page(sys.stdout), headings, rows, right=("step", "branches", "deviation", "mean", "worst", "best"))
    return 0


def _row(pivot: Pivot) -> list[str]:
    numbers: list[Any] = [pivot.step, pivot.branches, pivot.deviation, pivot.mean, pivot.worst, pivot.best]
    calls = (printable(call or "") for call in (pivot.worst_call, pivot.best_call))
    short = (call if len(call) <= _WIDTH else f"{call[: _WIDTH - 1]}…" for call in calls)
    return [printable(pivot.episode), *(f"{number:.4g}" for number in numbers), *short]
