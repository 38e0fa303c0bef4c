"""Summaries: the figures of an evaluation, computed from the results of its episodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, TypeVar

from .results import EpisodeResult, Failure
from .statistics import Interval, bootstrap, ks_shown, pass_at_k, pass_hat_k, wilson

Number = TypeVar("Number", int, float)
Unit = TypeVar("Unit", bound=Sequence[EpisodeResult])

MAX_LABELS = 100
"""Maximum labels of one kind in a summary. Those of the most tasks are kept."""


@dataclass(frozen=True)
class Estimate:
    """The mean over tasks, with its confidence interval.

    Attributes:
        value: the mean over tasks of the mean over each task's samples.
        interval: the 95 % confidence interval. A bootstrap interval is None for fewer than two tasks.
        tasks: number of tasks with a value.
    """

    value: float
    interval: Interval | None
    tasks: int


@dataclass(frozen=True)
class TaskSummary:
    """The figures of one task, or of one seed if there are no tasks.

    Attributes:
        samples: number of finished episodes.
        scored: number of finished episodes with a return.
        passed: number of scored episodes that passed; None if there is no threshold.
        mean_return: mean of the scored episodes; None if there are none.
        mean_steps: mean of all finished episodes.
        failures: number of episodes by kind of failure.
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
class LabelSummary:
    """The figures of the tasks with one label.

    Attributes:
        kind: ``level``, ``family`` or ``tag``.
        label: the label, as text.
        tasks: number of tasks with a finished episode.
        scored: number of their finished episodes with a return.
        passed: number of scored episodes that passed; None if there is no threshold.
        pass_rate: pass@1 with its interval, as in `Summary.pass_at`; None if no episode can pass.
        mean_return: as in `Summary`; None if nothing was scored.
    """

    kind: str
    label: str
    tasks: int
    scored: int
    passed: int | None
    pass_rate: Estimate | None
    mean_return: Estimate | None


@dataclass(frozen=True)
class Summary:
    """The figures of an evaluation. Returns and pass rates exclude episodes without a score.

    Attributes:
        planned: number of planned episodes.
        finished: number of finished episodes.
        scored: number of finished episodes with a return.
        passed: number of scored episodes that passed; None if there is no threshold.
        mean_return: the mean return, with a bootstrap interval over tasks.
        pass_at: pass@k by k, over tasks with at least k scored samples. pass@1 has Wilson's interval with as many
            trials as there are tasks, the others a bootstrap interval over tasks.
        pass_hat: pass^k by k from 2 on, over the same tasks, with a bootstrap interval over tasks. pass^1 is pass@1.
        components: means of the named components, computed as `mean_return` is. A component that an episode does not
            have counts as 0, so that components which add up to each episode's return add up to the mean return.
        mean_steps, median_steps, max_steps, mean_duration_s: over all finished episodes.
        mean_turns: mean number of answers of a model; None for other agents.
        malformed_calls: total of all finished episodes.
        failures: number of finished episodes by kind of failure, most frequent first.
        statuses: number of finished episodes by `StatusCode`, most frequent first. Episodes with an unusable status
            (`Status.usable`) have no score.
        not_passed: number of episodes that did not pass but have no failure.
        prompt_tokens, completion_tokens: totals of all finished episodes; None if not counted.
        cost: the total price of the model's answers in the endpoint's own unit; None if it reports none.
        user_prompt_tokens, user_completion_tokens: the same for models that played the environment's user.
        tasks: in the order of the plan.
        labels: the figures of each level, family and tag, at most 100 of a kind: those of the most tasks.
        pass_threshold: the given threshold; None for each task's full reward.
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
    user_prompt_tokens: int | None = None
    user_completion_tokens: int | None = None
    statuses: dict[str, int] = field(default_factory=dict)
    pass_hat: dict[int, Estimate] = field(default_factory=dict)
    cost: float | None = None
    tasks: list[TaskSummary] = field(default_factory=list)
    labels: list[LabelSummary] = field(default_factory=list)

    @property
    def unscored(self) -> int:
        """The number of episodes without a score because the environment or the endpoint failed."""
        return self.failures.get(Failure.ENVIRONMENT_ERROR, 0) + self.failures.get(Failure.MODEL_ERROR, 0)

    @property
    def without_calls(self) -> bool:
        """True if no finished episode has a step: the agent has called no tool, and was perhaps never connected."""
        return self.max_steps == 0

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain JSON data."""
        plain = asdict(self)
        for name, estimates in (("pass_at", self.pass_at), ("pass_hat", self.pass_hat)):
            plain[name] = {str(k): _plain(estimate) for k, estimate in estimates.items()}
        plain["mean_return"] = _plain(self.mean_return)
        for label, of_label in zip(plain["labels"], self.labels, strict=True):
            label |= {"pass_rate": _plain(of_label.pass_rate), "mean_return": _plain(of_label.mean_return)}
        return plain


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    interval = None if estimate.interval is None else list(estimate.interval)
    return {"value": estimate.value, "interval": interval, "tasks": estimate.tasks}


def summarize(results: Iterable[EpisodeResult], planned: int, pass_threshold: float | None = None) -> Summary:
    """Return the figures of finished episodes.

    Args:
        results: one for each finished episode.
        planned: number of planned episodes.
        pass_threshold: minimum return of an episode that passes; None for each task's full reward.
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
        pass_at=_pass_rates(passes, pass_at_k),
        pass_hat={k: estimate for k, estimate in _pass_rates(passes, pass_hat_k).items() if k > 1},
        components=_components(list(units.values())),
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
        cost=_sum(result.cost for result in results),
        user_prompt_tokens=_sum(result.user_prompt_tokens for result in results),
        user_completion_tokens=_sum(result.user_completion_tokens for result in results),
        pass_threshold=pass_threshold,
        statuses=dict(Counter(result.status.code.value for result in results).most_common()),
        tasks=[_task(unit, pass_threshold) for unit in units.values()],
        labels=[
            _label(kind, label, of_label, pass_threshold)
            for kind, labels in by_label(units.values()).items()
            for label, of_label in labels.items()
        ],
    )


def by_label(units: Iterable[Unit]) -> dict[str, dict[str, list[Unit]]]:
    """Return the units of each label, by kind: ``level``, ``family`` and ``tag``. A kind without labels is left out.

    Levels are in order, the others by the number of their tasks, then by name.

    Args:
        units: the results of each task.
    """
    found: dict[str, defaultdict[str, list[Unit]]] = {kind: defaultdict(list) for kind in ("level", "family", "tag")}
    for unit in units:
        task = unit[0]
        if task.level is not None:
            found["level"][str(task.level)].append(unit)
        if task.family is not None:
            found["family"][task.family].append(unit)
        for tag in dict.fromkeys(task.tags):
            found["tag"][tag].append(unit)
    return {kind: _ordered(kind, labels) for kind, labels in found.items() if labels}


def _ordered(kind: str, labels: Mapping[str, list[Unit]]) -> dict[str, list[Unit]]:
    most = sorted(labels, key=lambda label: (-len(labels[label]), label))[:MAX_LABELS]
    return {label: labels[label] for label in (sorted(most, key=int) if kind == "level" else most)}


def _label(kind: str, label: str, units: Sequence[Sequence[EpisodeResult]], threshold: float | None) -> LabelSummary:
    returns, passes = [_returns(unit) for unit in units], [_passes(unit, threshold) for unit in units]
    every_pass = [passed for unit in passes for passed in unit]
    return LabelSummary(
        kind=kind,
        label=label,
        tasks=len(units),
        scored=sum(map(len, returns)),
        passed=sum(every_pass) if every_pass else None,
        pass_rate=_pass_rates(passes, pass_at_k).get(1),
        mean_return=_mean_return(returns),
    )


def _returns(unit: Sequence[EpisodeResult]) -> list[float]:
    return [result.score for result in unit if result.score is not None]


def _passes(unit: Sequence[EpisodeResult], threshold: float | None) -> list[bool]:
    return [passed for result in unit if (passed := result.passed(threshold)) is not None]


def _mean_return(returns: Sequence[Sequence[float]]) -> Estimate | None:
    means = [fmean(unit) for unit in returns if unit]
    return Estimate(fmean(means), bootstrap(means), len(means)) if means else None


def _pass_rates(passes: Sequence[Sequence[bool]], estimate: Callable[[int, int, int], float]) -> dict[int, Estimate]:
    """Return pass@k or pass^k by k.

    Args:
        passes: for each task, which of its samples passed.
        estimate: the estimate of one task, for its number of samples, how many passed, and k.
    """
    found = {}
    for k in ks_shown(max(map(len, passes), default=0)):
        rates = [estimate(len(unit), sum(unit), k) for unit in passes if len(unit) >= k]
        # Rounding errors could put the mean of many rates above 1.
        rate = min(fmean(rates), 1.0)
        # The trials are the tasks, because samples of one task are not independent of each other.
        interval = wilson(rate, len(rates)) if k == 1 else bootstrap(rates)
        found[k] = Estimate(rate, interval, len(rates))
    return found


def _components(units: Sequence[Sequence[EpisodeResult]]) -> dict[str, float]:
    scored = [[result.components for result in unit if result.score is not None] for unit in units]
    names = sorted({name for unit in scored for components in unit for name in components})
    return {
        name: fmean(fmean(components.get(name, 0.0) for components in unit) for unit in scored if unit)
        for name in names
    }


def _sum(counts: Iterable[Number | None]) -> Number | None:
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
