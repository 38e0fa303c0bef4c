"""Comparisons: the differences between two evaluations of the same tasks, and a test if they are more than chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv_client.scores import equal

from .flip import Flip, flip_of
from .paired import PairedDifference, paired_difference
from .results import EpisodeResult
from .settings import Difference, differences
from .statistics import ks_shown, pass_at_k, pass_hat_k
from .stored_run import StoredRun, Unit, read_run
from .summary import by_label

MEAN_RETURN = "mean return"

COSTS = ("steps", "seconds", "tokens")
"""The figures of which less is better."""

Results = Sequence[EpisodeResult]


@dataclass(frozen=True)
class Figure:
    """One figure of both evaluations, as means over the tasks for which both have it.

    Attributes:
        name: ``pass@1``, ``pass^2``, ``mean return``, ``steps``, ``seconds``, ``tokens``.
        difference: the candidate's value minus the baseline's.
    """

    name: str
    baseline: float
    candidate: float
    difference: PairedDifference

    @property
    def better(self) -> bool:
        """True if the candidate's value is better: lower for costs, else higher."""
        return (self.difference.value < 0.0) == (self.name in COSTS) and self.difference.value != 0.0


@dataclass(frozen=True)
class LabelFigure:
    """The figure that decides, over the compared tasks with one label.

    Attributes:
        kind: ``level``, ``family`` or ``tag``.
        label: the label, as text.
    """

    kind: str
    label: str
    figure: Figure


@dataclass(frozen=True)
class LeftOut:
    """The tasks that are not compared, by reason.

    Attributes:
        baseline_only, candidate_only: played in one evaluation only.
        changed: the definition differs, so that results of the two are not comparable.
        unscored: at least one evaluation has no episode with a score.
    """

    baseline_only: list[str]
    candidate_only: list[str]
    changed: list[str]
    unscored: list[str]

    @property
    def count(self) -> int:
        """The number of tasks."""
        return sum(map(len, (self.baseline_only, self.candidate_only, self.changed, self.unscored)))


@dataclass(frozen=True)
class Comparison:
    """The comparison of a candidate with a baseline.

    Attributes:
        settings: the settings that differ.
        tasks: the names of the compared tasks, or seeds.
        left_out: the other tasks.
        unscored: number of episodes of compared tasks without a score, of baseline and candidate.
        figures: the figures, success first. `primary` decides.
        flips: the tasks with different pass rates, the largest losses first. Empty without a threshold.
        pass_threshold: minimum return of an episode that passes; None for each task's full reward.
        metric: the name of the figure that was chosen to decide; None if none was chosen.
        labels: the figure that decides, by level, family and tag, as the candidate's tasks have them.
    """

    baseline: StoredRun
    candidate: StoredRun
    settings: list[Difference]
    tasks: list[str]
    left_out: LeftOut
    unscored: tuple[int, int]
    figures: dict[str, Figure]
    flips: list[Flip]
    pass_threshold: float | None
    metric: str | None = None
    labels: list[LabelFigure] = field(default_factory=list)

    @property
    def primary(self) -> Figure:
        """The figure that decides: the chosen one, else pass@1, or the mean return if no episode can pass."""
        return self.figures[_deciding(self.figures, self.metric)]

    def to_plain(self) -> dict[str, Any]:
        """Return the comparison as plain JSON data."""
        return {
            "baseline": _plain(self.baseline, self.unscored[0]),
            "candidate": _plain(self.candidate, self.unscored[1]),
            "settings": [{"name": name, "baseline": before, "candidate": now} for name, before, now in self.settings],
            "tasks": self.tasks,
            "left_out": asdict(self.left_out),
            "pass_threshold": self.pass_threshold,
            "figures": {name: _figure(figure) for name, figure in self.figures.items()},
            "flips": [flip.to_plain() for flip in self.flips],
            "labels": [{"kind": each.kind, "label": each.label, **_figure(each.figure)} for each in self.labels],
            "primary": self.primary.name,
            "significant": self.primary.difference.significant,
        }


def compare(
    baseline: Path | str, candidate: Path | str, *, pass_threshold: float | None = None, metric: str | None = None
) -> Comparison:
    """Compare the evaluations in two folders, on the tasks that both have.

    All finished episodes count, even in an interrupted evaluation. Episodes without a score do not count.

    Args:
        baseline: the folder of the evaluation to compare with.
        candidate: the folder of the evaluation to judge.
        pass_threshold: minimum return of an episode that passes. Default: the threshold of the figures in both
            folders, or else each task's full reward.
        metric: the name of the figure that decides, such as "pass^2"; "return" is the mean return.

    Raises:
        ConfigurationError: a folder has no evaluation, or the two are not comparable: another environment, no task in
            common, figures with different thresholds, or no such metric.
    """
    if Path(baseline).resolve() == Path(candidate).resolve():
        raise ConfigurationError(f"{baseline} and {candidate} are the same folder; name two evaluations")
    before, after = read_run(Path(baseline)), read_run(Path(candidate))
    _check_environments(before, after)
    if pass_threshold is None:
        pass_threshold = _threshold(before, after)
    ours, theirs = before.by_unit(), after.by_unit()
    common, left_out = _common(ours, theirs)
    if not common:
        raise ConfigurationError(f"{baseline} and {candidate} have no task to compare: {_reasons(left_out)}")
    pairs = [(ours[unit], theirs[unit]) for unit in common]
    figures = {figure.name: figure for figure in _figures(pairs, pass_threshold)}
    metric = MEAN_RETURN if metric == "return" else metric
    if metric is not None and metric not in figures:
        names = ", ".join("return" if name == MEAN_RETURN else name for name in figures)
        raise ConfigurationError(f"the evaluations have no metric {metric!r}; they have {names}")
    return Comparison(
        baseline=before,
        candidate=after,
        settings=list(differences(before.settings, after.settings)),
        tasks=[name_of(unit) for unit in common],
        left_out=left_out,
        unscored=(_unscored(one for one, _ in pairs), _unscored(other for _, other in pairs)),
        figures=figures,
        flips=_flips(common, pairs, pass_threshold),
        pass_threshold=pass_threshold,
        metric=metric,
        labels=_labels(pairs, pass_threshold, _deciding(figures, metric)),
    )


def name_of(unit: Unit) -> str:
    """Return the name of a task with its split, or of a seed."""
    split, task, seed = unit
    return f"seed {seed}" if task is None else f"{split}/{task}"


# -- comparable tasks


def _check_environments(one: StoredRun, other: StoredRun) -> None:
    names = one.environment["name"], other.environment["name"]
    if names[0] != names[1]:
        raise ConfigurationError(
            f"{one.directory} evaluated {names[0]}, and {other.directory} {names[1]}; "
            "evaluations of different environments are not comparable"
        )


def _threshold(one: StoredRun, other: StoredRun) -> float | None:
    """Return the threshold of both summaries. An interrupted evaluation has none."""
    found = {run.pass_threshold: run for run in (one, other) if run.planned is not None}
    if len(found) > 1:
        shown = [f"{each.directory} {_limit(threshold)}" for threshold, each in found.items()]
        raise ConfigurationError(f"the figures have different thresholds: {', '.join(shown)}; choose --pass-threshold")
    return next(iter(found), None)


def _limit(threshold: float | None) -> str:
    return "the full reward of each task" if threshold is None else f"{threshold:g}"


def _common(ours: Mapping[Unit, Results], theirs: Mapping[Unit, Results]) -> tuple[list[Unit], LeftOut]:
    left_out = LeftOut(
        baseline_only=sorted(name_of(unit) for unit in ours if unit not in theirs),
        candidate_only=sorted(name_of(unit) for unit in theirs if unit not in ours),
        changed=[],
        unscored=[],
    )
    common = []
    # The order in which episodes end differs between evaluations.
    for unit in sorted(ours.keys() & theirs.keys(), key=name_of):
        if len({result.digest for result in (*ours[unit], *theirs[unit])}) > 1:
            left_out.changed.append(name_of(unit))
        elif not _scored(ours[unit]) or not _scored(theirs[unit]):
            left_out.unscored.append(name_of(unit))
        else:
            common.append(unit)
    return common, left_out


def _reasons(left_out: LeftOut) -> str:
    words = {
        "baseline_only": "only in the first",
        "candidate_only": "only in the second",
        "changed": "changed between them",
        "unscored": "without a score in one of them",
    }
    found = [(words[reason], names) for reason, names in asdict(left_out).items() if names]
    return "; ".join(f"{len(names)} {words} (such as {names[0]})" for words, names in found)


# -- the figures


def _scored(results: Results) -> list[EpisodeResult]:
    return [result for result in results if result.score is not None and not result.unscored]


def _unscored(units: Iterator[Results]) -> int:
    return sum(len(results) - len(_scored(results)) for results in units)


def _passes(results: Results, threshold: float | None) -> list[bool]:
    return [passed for result in results if (passed := result.passed(threshold)) is not None]


def _figures(pairs: Sequence[tuple[Results, Results]], threshold: float | None) -> Iterator[Figure]:
    passes = [(_passes(one, threshold), _passes(other, threshold)) for one, other in pairs]
    ks = ks_shown(max(min(len(one), len(other)) for one, other in passes))
    estimates = [("@", pass_at_k, ks), ("^", pass_hat_k, [k for k in ks if k > 1])]
    for sign, estimate, shown in estimates:
        for k in shown:
            enough = [(one, other) for one, other in passes if min(len(one), len(other)) >= k]
            yield from _figure_of(
                f"pass{sign}{k}",
                [estimate(len(one), sum(one), k) for one, _ in enough],
                [estimate(len(other), sum(other), k) for _, other in enough],
            )
    of_episodes: list[tuple[str, Callable[[EpisodeResult], float | None]]] = [
        (MEAN_RETURN, lambda result: result.score),
        ("steps", lambda result: result.steps),
        ("seconds", lambda result: result.duration_s),
        ("tokens", _tokens),
    ]
    for name, value in of_episodes:
        means = [(_mean(one, value), _mean(other, value)) for one, other in pairs]
        known = [(one, other) for one, other in means if one is not None and other is not None]
        yield from _figure_of(name, [one for one, _ in known], [other for _, other in known])


def _tokens(result: EpisodeResult) -> float | None:
    if result.prompt_tokens is None and result.completion_tokens is None:
        return None
    return (result.prompt_tokens or 0) + (result.completion_tokens or 0)


def _mean(results: Results, value: Callable[[EpisodeResult], float | None]) -> float | None:
    known = [each for result in _scored(results) if (each := value(result)) is not None]
    return fmean(known) if known else None


def _figure_of(name: str, baseline: Sequence[float], candidate: Sequence[float]) -> Iterator[Figure]:
    """Yield the figure of values by task; nothing without tasks."""
    pairs = zip(baseline, candidate, strict=True)
    difference = paired_difference([0.0 if equal(before, after) else after - before for before, after in pairs])
    if difference is not None:
        yield Figure(name, fmean(baseline), fmean(candidate), difference)


def _deciding(figures: Mapping[str, Figure], metric: str | None) -> str:
    """Return the name of the figure that decides."""
    return metric or ("pass@1" if "pass@1" in figures else MEAN_RETURN)


def _labels(pairs: Sequence[tuple[Results, Results]], threshold: float | None, name: str) -> list[LabelFigure]:
    """Return the figure of that name for each label; labels whose tasks do not have it are left out."""
    before = {id(candidate): baseline for baseline, candidate in pairs}
    found = []
    for kind, labels in by_label([candidate for _, candidate in pairs]).items():
        for label, units in labels.items():
            figures = _figures([(before[id(unit)], unit) for unit in units], threshold)
            figure = next((figure for figure in figures if figure.name == name), None)
            if figure is not None:
                found.append(LabelFigure(kind, label, figure))
    return found


def _flips(units: Sequence[Unit], pairs: Sequence[tuple[Results, Results]], threshold: float | None) -> list[Flip]:
    found = []
    for unit, (one, other) in zip(units, pairs, strict=True):
        flip = flip_of(name_of(unit), _passes(one, threshold), _passes(other, threshold))
        if flip is not None:
            found.append(flip)
    return sorted(found, key=lambda flip: (flip.change, flip.task))


# -- as plain data


def _plain(run: StoredRun, unscored: int) -> dict[str, Any]:
    return {
        "directory": str(run.directory),
        "environment": run.environment,
        "agent": run.settings.get("agent"),
        "finished": len(run.results),
        "planned": run.planned,
        "unscored": unscored,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    difference = figure.difference
    return {
        "baseline": figure.baseline,
        "candidate": figure.candidate,
        "difference": difference.value,
        "interval": None if difference.interval is None else list(difference.interval),
        "p": difference.p,
        "significant": difference.significant,
        "tasks": difference.tasks,
    }
