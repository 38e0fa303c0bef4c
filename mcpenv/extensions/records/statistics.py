"""The statistics of a record: endings, statuses, returns, steps, tools and tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mcpenv.trajectories.episode import RecordedEpisode

PERCENTILES = (5, 25, 50, 75, 95)


def statistics_of(episodes: Iterable[RecordedEpisode]) -> dict[str, Any]:
    """Return the statistics of a record, as plain data. Episodes are read once and not kept."""
    endings: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    returns: list[float] = []
    steps: list[float] = []
    tools: dict[str, Counter[str]] = {}
    tasks: dict[tuple[str, str], list[float | None]] = {}
    count = 0
    for episode in episodes:
        trajectory = episode.trajectory
        count += 1
        endings[episode.ending] += 1
        statuses["unfinished" if trajectory.status is None else trajectory.status.code.value] += 1
        earned = trajectory.earned
        if earned is not None:
            returns.append(earned)
        steps.append(trajectory.dropped + len(trajectory.steps))
        if trajectory.task is not None:
            tasks.setdefault((trajectory.task.split, trajectory.task.id), []).append(earned)
        for step in trajectory.steps:
            counts = tools.setdefault(step.call.name, Counter())
            counts["calls"] += 1
            error, result = step.outcome.error, step.outcome.result
            if error is not None:
                counts[error.error_type.value] += 1
            elif result is not None and result.is_error:
                counts["is_error"] += 1
    return {
        "episodes": count,
        "endings": dict(endings.most_common()),
        "statuses": dict(statuses.most_common()),
        "return": spread(returns),
        "steps": spread(steps),
        "tools": {name: _tool(counts) for name, counts in sorted(tools.items())},
        "tasks": [_task(*name, earned) for name, earned in sorted(tasks.items())],
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, extremes and percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        "min": ordered[0],
        **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES},
        "max": ordered[-1],
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest values."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _tool(counts: Counter[str]) -> dict[str, Any]:
    errors = {kind: number for kind, number in counts.items() if kind != "calls"}
    failed = sum(errors.values())
    return {"calls": counts["calls"], "errors": failed, "error_rate": failed / counts["calls"], "by_type": errors}


def _task(split: str, task_id: str, earned: Sequence[float | None]) -> dict[str, Any]:
    scored = [value for value in earned if value is not None]
    mean = math.fsum(scored) / len(scored) if scored else None
    return {"split": split, "id": task_id, "episodes": len(earned), "mean_return": mean}
