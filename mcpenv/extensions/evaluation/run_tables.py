"""The tables of one evaluation, for the console: its figures, and its tasks with their episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcpenv.extensions.exports.page.overview import counts_text, number_text

from .comparison import name_of
from .results import EpisodeResult
from .run_page import figures_of
from .settings import shown
from .stored_run import StoredRun
from .summary import Summary, summarize

_OF_TASKS = ("Passed", "Mean return", "Mean steps", "Failures", "Returns of the episodes")


def report_of(run: StoredRun, *, recorded: bool) -> dict[str, Any]:
    """Return ``title``, ``notes``, ``recorded`` and ``tables``, each with ``title``, ``heads`` and ``rows``.

    A cell is a text, or a list of episodes, each with its ``id`` in the record, a ``text``, and a ``name``.

    Args:
        recorded: True if the evaluation has its record, so that its episodes can be shown.
    """
    summary = summarize(run.results, run.planned or len(run.results), run.pass_threshold)
    threshold = "each task's full reward" if run.pass_threshold is None else f"{run.pass_threshold:g}"
    settings = [(name, shown(value)) for name, value in run.settings.items() if value not in (None, [], "")]
    unit = "Seed" if all(result.task is None for result in run.results) else "Task"
    tables = [
        {"title": "Figures", "heads": ("Figure", "Value"), "rows": figures_of(summary)},
        {"title": f"{unit}s", "heads": (unit, *_OF_TASKS), "rows": list(_of_tasks(run, summary, recorded))},
        {"title": "Settings", "heads": ("Setting", "Value"), "rows": [*settings, ("pass threshold", threshold)]},
    ]
    title = f"Evaluation of {run.environment['name']}"
    return {"title": title, "notes": list(_notes(run, recorded)), "recorded": recorded, "tables": tables}


def _notes(run: StoredRun, recorded: bool) -> Iterator[str]:
    if run.planned is None or run.planned > len(run.results):
        yield "This evaluation has not come to its end: the figures are of its finished episodes."
    if not recorded:
        yield "Its folder has no record, so its episodes cannot be shown."


def _of_tasks(run: StoredRun, summary: Summary, recorded: bool) -> Iterator[tuple[Any, ...]]:
    for task, (unit, results) in zip(summary.tasks, run.by_unit().items(), strict=True):
        yield (
            name_of(unit),
            "-" if task.passed is None else f"{task.passed}/{task.scored}",
            number_text(task.mean_return),
            number_text(task.mean_steps),
            counts_text(task.failures),
            [_cell(result, recorded) for result in sorted(results, key=lambda result: result.sample)],
        )


def _cell(result: EpisodeResult, recorded: bool) -> dict[str, str | None]:
    unit = name_of(result.key.unit)
    text = "no score" if result.score is None or result.unscored else number_text(result.score)
    # A name contains the visible text, for visitors who control their browser by speech.
    name = f"{text}: {unit}, sample {result.sample}"
    return {"id": result.episode_id if recorded else None, "text": text, "name": name}


__all__ = ["report_of"]
