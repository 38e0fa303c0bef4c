"""Costs: steps, seconds and tokens of episodes, and outliers among them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from mcpenv.trajectories.episode import EVALUATED, RecordedEpisode
from mcpenv.trajectories.summary import named_task_of

from .finding import Finding, Kind
from .statistics import percentile

ENOUGH = 8
"""Minimum number of episodes for finding outliers."""

AT_LEAST, AT_MOST = 3, 10
"""The bounds of the limit, in medians: lower costs are never outliers, higher costs always are."""

FENCE = 3
"""Distance of the fence from the upper quartile, in interquartile ranges."""

LEAST = {"steps": 10, "seconds": 10.0, "tokens": 1000}
"""Costs below which an episode is no outlier: their spread comes from the machine or from single calls."""


@dataclass(frozen=True)
class _Limit:
    """The cost above which an episode is an outlier, and the median."""

    value: float
    median: float


class Costs:
    """The costs of the episodes seen so far, by environment.

    A cost is an outlier if it lies beyond the outer fence of Tukey (1977, Exploratory Data Analysis, section 2D). The
    fence is computed from logarithms, because costs are skewed, and is kept between 3 and 10 times the median.
    """

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, str], list[tuple[float, str, str | None]]] = defaultdict(list)

    def add(self, episode: RecordedEpisode) -> None:
        """Add the costs of an episode."""
        for name, cost in _costs_of(episode).items():
            self._known[episode.environment.name, name].append((cost, episode.id, named_task_of(episode.trajectory)))

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each outlier, the most expensive first."""
        for (_, name), costs in self._known.items():
            if len(costs) < ENOUGH:
                continue
            limit = _limit([cost for cost, _, _ in costs])
            for cost, episode_id, task in sorted(costs, key=lambda each: each[0], reverse=True):
                if cost <= limit.value or cost < LEAST[name]:
                    break
                text = f"{_number(cost)} {name}; the median of {len(costs)} episodes is {_number(limit.median)}"
                yield Finding(Kind.COST_OUTLIER, episode_id, text, [episode_id], task)


def _limit(costs: list[float]) -> _Limit:
    # Costs of 0 count as small ones: a logarithm needs a positive number.
    smallest = min((cost for cost in costs if cost > 0), default=1.0)
    logs = sorted(math.log(max(cost, smallest)) for cost in costs)
    low, middle, high = (percentile(logs, share) for share in (25, 50, 75))
    median = math.exp(middle)
    # exp() of the fence could overflow; exp() of the bound cannot.
    fence = math.exp(min(high + FENCE * (high - low), middle + math.log(AT_MOST)))
    return _Limit(max(fence, AT_LEAST * median), median)


def _costs_of(episode: RecordedEpisode) -> dict[str, float]:
    trajectory = episode.trajectory
    costs: dict[str, float] = {"steps": trajectory.dropped + len(trajectory.steps)}
    if trajectory.started_at and trajectory.ended_at is not None:
        costs["seconds"] = trajectory.ended_at - trajectory.started_at
    result = episode.extra.get(EVALUATED)
    if isinstance(result, dict):
        counts = [result.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
        known = [count for count in counts if isinstance(count, int)]
        if known:
            costs["tokens"] = sum(known)
    return costs


def _number(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 10 else f"{cost:.2g}"
