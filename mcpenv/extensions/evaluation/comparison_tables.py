"""The tables of a comparison, as texts: for the command line and for the console."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .comparison import Comparison, Figure, LabelFigure, LeftOut, name_of
from .results import EpisodeResult
from .run_tables import episode_cell
from .settings import shown

FIGURES = ("", "baseline", "candidate", "change", "95 % interval", "p", "tasks")

LABELS = ("label", *FIGURES[1:])

_TASKS = ("task", "baseline", "candidate", "change", "", "p")
_NUMBERS = {"style": "number"}
MAX_EPISODES = 8
"""Maximum episodes of a task that a table names for each side."""

_DIGITS = {"steps": 1, "seconds": 2, "tokens": 0}


def figure_row(figure: Figure) -> tuple[str, ...]:
    """Return a figure as a row under `FIGURES`."""
    difference = figure.difference
    digits = _DIGITS.get(figure.name, 3)
    interval = "-"
    if difference.interval is not None:
        interval = f"[{difference.interval.low:+.{digits}f}, {difference.interval.high:+.{digits}f}]"
    return (
        figure.name,
        f"{figure.baseline:.{digits}f}",
        f"{figure.candidate:.{digits}f}",
        f"{difference.value:+.{digits}f}",
        interval,
        p_text(difference.p),
        str(difference.tasks),
    )


def label_row(of_label: LabelFigure) -> tuple[str, ...]:
    """Return the figure of a label as a row under `LABELS`."""
    return (f"{of_label.kind} {of_label.label}", *figure_row(of_label.figure)[1:])


def p_text(value: float) -> str:
    """Return a p-value."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def left_out_by_reason(left_out: LeftOut) -> Iterator[tuple[str, list[str]]]:
    """Yield each reason for leaving tasks out, with the names of those tasks."""
    for why, names in (
        ("changed between the two", left_out.changed),
        ("only in the baseline", left_out.baseline_only),
        ("only in the candidate", left_out.candidate_only),
        ("without a score in one of them", left_out.unscored),
    ):
        if names:
            yield why, names


Recorded = tuple[str | None, str | None]
"""The names of a baseline and a candidate that have records; None for one that has none."""


def tables_of(found: Comparison, recorded: Recorded = (None, None)) -> list[dict[str, Any]]:
    """Return the tables for a page, each with ``title``, ``heads`` and ``rows``; of numbers with ``style``.

    A cell is a text, or a list of parts: ``text``, and of an episode its ``id`` and the evaluation ``run`` that it is
    in. ``style`` is "good" or "error" for what is better or worse by more than chance, and for tasks gained or lost.
    """
    tasks = [_task_row(found, recorded, *row) for row in _by_task(found)]
    lost = sum(flip.change < 0 for flip in found.flips)
    counts = f"{lost} lost, {len(found.flips) - lost} gained, {len(tasks) - len(found.flips)} the same"
    tables = [
        {"title": "Figures", "heads": FIGURES, "rows": [*map(_figure_cells, found.figures.values())], **_NUMBERS},
        {"title": f"{len(tasks)} tasks: {counts}", "heads": _TASKS, "rows": tasks, **_NUMBERS},
    ]
    if found.labels:
        title = f"{found.primary.name} by label"
        tables.insert(1, {"title": title, "heads": LABELS, "rows": [*map(label_row, found.labels)], **_NUMBERS})
    left_out = [(name, why) for why, names in left_out_by_reason(found.left_out) for name in names]
    if left_out:
        tables.append({"title": f"{len(left_out)} tasks left out", "heads": ("task", "why"), "rows": left_out})
    settings = [(name, shown(before), shown(now)) for name, before, now in found.settings]
    if settings:
        heads = ("setting", "baseline", "candidate")
        tables.append({"title": "Settings that differ", "heads": heads, "rows": settings})
    return tables


def _by_task(found: Comparison) -> Iterator[tuple[str, list[EpisodeResult], list[EpisodeResult]]]:
    """Yield the compared tasks: first losses, largest first, then gains, then unchanged tasks."""
    changes = {flip.task: flip.change for flip in found.flips}
    before, now = (
        {name_of(unit): results for unit, results in run.by_unit().items()} for run in (found.baseline, found.candidate)
    )
    for task in sorted(found.tasks, key=lambda task: (task not in changes, changes.get(task, 0.0))):
        yield task, before[task], now[task]


def _task_row(
    found: Comparison, recorded: Recorded, task: str, before: list[EpisodeResult], now: list[EpisodeResult]
) -> tuple[Any, ...]:
    flip = next((flip for flip in found.flips if flip.task == task), None)
    sides = [
        [{"text": _side(results, found.pass_threshold)}, *_episodes(results, run)]
        for results, run in zip((before, now), recorded, strict=True)
    ]
    if flip is None:
        return (task, *sides, "", "same", "")
    lost = flip.change < 0
    change = {"text": "lost" if lost else "gained", "style": _style(not lost)}
    return (task, *sides, f"{flip.change:+.3f}", [change], p_text(flip.p))


def _episodes(results: list[EpisodeResult], run: str | None) -> list[dict[str, Any]]:
    """Return the cells of the first recorded episodes of a task."""
    shown = sorted(results, key=lambda result: result.sample)[:MAX_EPISODES] if run is not None else []
    return [{**episode_cell(result, True), "run": run} for result in shown if result.episode_id]


def _figure_cells(figure: Figure) -> tuple[Any, ...]:
    name, baseline, candidate, change, *rest = figure_row(figure)
    interval = figure.difference.interval
    if interval is None or interval.low <= 0 <= interval.high:
        return (name, baseline, candidate, change, *rest)
    better = (interval.low > 0) is (figure.name not in _DIGITS)  # fewer steps, seconds and tokens are better
    return (name, baseline, candidate, [{"text": change, "style": _style(better)}], *rest)


def _style(better: bool) -> str:
    return "good" if better else "error"


def _side(results: list[EpisodeResult], threshold: float | None) -> str:
    """Return the number of passed episodes, or the mean return if no episode can pass."""
    passes = [passed for result in results if (passed := result.passed(threshold)) is not None]
    if passes:
        return f"{sum(passes)}/{len(passes)}"
    scored = [result.score for result in results if result.score is not None and not result.unscored]
    return f"{math.fsum(scored) / len(scored):.3f}"
