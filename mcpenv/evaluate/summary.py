"""Summary: the figures of an evaluation, all of them made from the results of its episodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from .results import EpisodeResult, Failure
from .statistics import Interval, bootstrap, ks_shown, pass_at_k, wilson


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks, and how sure it is.

    Attributes:
        value: of each task the mean of its samples, of these the mean.
        interval: has the true value 95 times of 100; None for fewer than two tasks.
        tasks: how many it is made of.
    """

    value: float
    interval: Interval | None
    tasks: int


@dataclass(frozen=True)
class TaskSummary:
    """What became of one task; of one seed, where there are no tasks.

    Attributes:
        samples: episodes that are finished.
        scored: of these, those that have a return.
        passed: of these, those whose return reaches the threshold; None where there is none.
        mean_return: of the scored ones; None without any.
        mean_steps: of all samples.
        failures: how many of each kind.
    """

    name: str
    split: str | None
    samples: int
    scored: int
    passed: int | None
    mean_return: float | None
    mean_steps: float
    failures: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """The figures. Episodes without a score are in none but the counts.

    Attributes:
        planned: episodes that there are to be.
        finished: episodes that are over.
        scored: finished episodes that have a return.
        passed: scored episodes whose return reaches the threshold; None where there is none.
        mean_return: with a bootstrap interval over tasks.
        pass_at: by k; that of 1 with Wilson's interval for as many trials as there are tasks, the others with a
            bootstrap interval over tasks. Of tasks that have at least k scored samples.
        components: means of the named parts over the scored episodes that have them.
        mean_steps, median_steps, max_steps, mean_duration_s: of all finished episodes.
        mean_turns: answers of a model; None for other agents.
        malformed_calls: of all finished episodes.
        failures: how many finished episodes had each kind, most frequent first.
        not_passed: episodes without a failure that did not pass.
        prompt_tokens, completion_tokens: of all finished episodes; None if nobody counted.
        tasks: in the order of the plan.
        pass_threshold: the one that was asked for; None for each task's full reward.
    """

    planned: int
    finished: int
    scored: int
    passed: int | None
    mean_return: Estimate | None
    pass_at: dict[int, Estimate]
    components: dict[str, float]
    mean_steps: float | None
    median_steps: float | None
    max_steps: int | None
    mean_turns: float | None
    mean_duration_s: float | None
    malformed_calls: int
    failures: dict[str, int]
    not_passed: int
    prompt_tokens: int | None
    completion_tokens: int | None
    pass_threshold: float | None
    tasks: list[TaskSummary] = field(default_factory=list)

    @property
    def unscored(self) -> int:
        """Episodes that say nothing of the agent, because the environment or the endpoint failed."""
        return self.failures.get(Failure.ENVIRONMENT_ERROR, 0) + self.failures.get(Failure.MODEL_ERROR, 0)

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON data."""
        plain = asdict(self)
        plain["pass_at"] = {str(k): _plain(estimate) for k, estimate in self.pass_at.items()}
        plain["mean_return"] = None if self.mean_return is None else _plain(self.mean_return)
        return plain


def _plain(estimate: Estimate) -> dict[str, Any]:
    interval = None if estimate.interval is None else list(estimate.interval)
    return {"value": estimate.value, "interval": interval, "tasks": estimate.tasks}


def summarize(results: Iterable[EpisodeResult], planned: int, pass_threshold: float | None = None) -> Summary:
    """The figures of finished episodes.

    Args:
        results: one for each finished episode.
        planned: episodes that there are to be.
        pass_threshold: the return from which on an episode has passed; None: each task's full reward.
    """
    results = list(results)
    units: defaultdict[Any, list[EpisodeResult]] = defaultdict(list)
    for result in results:
        units[result.key.unit].append(result)
    returns = [_returns(unit) for unit in units.values()]
    passes = [_passes(unit, pass_threshold) for unit in units.values()]
    failures = Counter(result.failure.value for result in results if result.failure is not None)
    every_pass = [passed for unit in passes for passed in unit]
    steps = [result.steps for result in results]
    turns = [result.turns for result in results if result.turns is not None]
    return Summary(
        planned=planned,
        finished=len(results),
        scored=sum(map(len, returns)),
        passed=sum(every_pass) if every_pass else None,
        mean_return=_mean_return(returns),
        pass_at=_pass_at(passes),
        components=_components(results),
        mean_steps=fmean(steps) if steps else None,
        median_steps=median(steps) if steps else None,
        max_steps=max(steps, default=None),
        mean_turns=fmean(turns) if turns else None,
        mean_duration_s=fmean(result.duration_s for result in results) if results else None,
        malformed_calls=sum(result.malformed_calls for result in results),
        failures=dict(failures.most_common()),
        not_passed=sum(result.failure is None and result.passed(pass_threshold) is False for result in results),
        prompt_tokens=_sum(result.prompt_tokens for result in results),
        completion_tokens=_sum(result.completion_tokens for result in results),
        pass_threshold=pass_threshold,
        tasks=[_task(unit, pass_threshold) for unit in units.values()],
    )


def _returns(unit: Sequence[EpisodeResult]) -> list[float]:
    return [result.score for result in unit if result.score is not None]


def _passes(unit: Sequence[EpisodeResult], threshold: float | None) -> list[bool]:
    return [passed for result in unit if (passed := result.passed(threshold)) is not None]


def _mean_return(returns: Sequence[Sequence[float]]) -> Estimate | None:
    means = [fmean(unit) for unit in returns if unit]
    return Estimate(fmean(means), bootstrap(means), len(means)) if means else None


def _pass_at(passes: Sequence[Sequence[bool]]) -> dict[int, Estimate]:
    found = {}
    for k in ks_shown(max(map(len, passes), default=0)):
        rates = [pass_at_k(len(unit), sum(unit), k) for unit in passes if len(unit) >= k]
        # Rounding in the sum of many rates must not put their mean beyond 1.
        rate = min(fmean(rates), 1.0)
        # Samples of one task are not independent of each other, so that the trials are the tasks.
        interval = wilson(rate, len(rates)) if k == 1 else bootstrap(rates)
        found[k] = Estimate(rate, interval, len(rates))
    return found


def _components(results: Sequence[EpisodeResult]) -> dict[str, float]:
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            for name, part in result.components.items():
                parts[name].append(part)
    return {name: fmean(values) for name, values in sorted(parts.items())}


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _task(unit: Sequence[EpisodeResult], threshold: float | None) -> TaskSummary:
    first, returns, passes = unit[0], _returns(unit), _passes(unit, threshold)
    return TaskSummary(
        name=f"seed {first.seed}" if first.task is None else first.task,
        split=first.split,
        samples=len(unit),
        scored=len(returns),
        passed=sum(passes) if passes else None,
        mean_return=fmean(returns) if returns else None,
        mean_steps=fmean(result.steps for result in unit),
        failures=dict(Counter(result.failure.value for result in unit if result.failure is not None).most_common()),
    )
