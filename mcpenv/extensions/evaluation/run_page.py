"""The pages of an evaluation: its report, and the overview before its episodes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.exports.page import Overview, Placed
from mcpenv.extensions.exports.page.markup import Child, el, facts, page_of, table

from .comparison import name_of
from .results import EpisodeResult
from .run_directory import REPORT
from .run_tables import (
    LABELS,
    agent_of,
    charts_of,
    failure_text,
    figures_of,
    label_row,
    notes_of,
    settings_of,
    task_row,
    title_of,
    unit_of,
)
from .stored_run import StoredRun
from .summary import summarize

_METHOD = (
    "Intervals are 95 %: Wilson's for pass@1, with as many trials as there are tasks; the percentile bootstrap over "
    "tasks for the others. pass@k is the unbiased estimate of Chen et al. (2021)."
)


def write_report(run: StoredRun) -> Path:
    """Write the report to the evaluation's folder and return its path."""
    file, whole = run.directory / REPORT, run.directory / f".{REPORT}-{secrets.token_hex(4)}"
    whole.write_text(report_of(run), encoding="utf-8")
    os.replace(whole, file)
    return file


def report_of(run: StoredRun) -> str:
    """Return the report as HTML. Texts of models, agents and tasks are escaped."""
    return page_of(title_of(run), _overview(run, None))


def overview_of_run(run: StoredRun) -> Overview:
    """Return the overview of an evaluation, with links to its episodes, which are in the page."""

    def overview(placed: Sequence[Placed], figures: dict[str, Any]) -> tuple[str, list[Element]]:
        missing = len(run.results) - len(placed)
        text = f"{len(placed)} of {len(run.results)} episodes are in this page; the figures are of all."
        links = {each.summary["id"]: each for each in placed}
        return title_of(run), list(_overview(run, links, [text] if missing > 0 else []))

    return overview


def _overview(run: StoredRun, links: dict[str, Placed] | None, notes: Sequence[str] = ()) -> Iterator[Element]:
    """Yield the overview: figures, charts, tasks, episodes and settings.

    Args:
        links: the episodes in the page by their ids; None if the page has no episodes.
        notes: further sentences at the top.
    """
    summary, unit = summarize(run.results, run.planned or len(run.results), run.pass_threshold), unit_of(run)
    yield el("h1", title_of(run))
    split = f", split {run.settings['split']}" if run.settings.get("split") else ""
    yield el("p", f"{agent_of(run)}{split}, {len(summary.tasks)} {unit.lower()}s", class_="muted")
    for note in [*notes_of(run, summary), *notes]:
        yield el("p", note, class_="warn")
    yield el("dl", *(_card(*figure) for figure in figures_of(summary)), class_="cards")
    yield el("section", *charts_of(run, summary), class_="charts", aria_label="Charts")
    if summary.labels:
        yield el("h2", "Labels")
        yield table("Labels", LABELS, [*map(label_row, summary.labels)], (1, 2, 3, 4, 5))
    yield el("h2", f"{unit}s")
    tasks = [_marked(task_row(task), failed=task.passed == 0) for task in summary.tasks]
    yield table(f"{unit}s", (unit, "Passed", "Mean return", "Mean steps", "Failures"), tasks, (1, 2, 3))
    yield el("h2", "Episodes")
    rows = [_row(result, links) for result in run.results]
    heads = (unit, "Sample", "Return", "Steps", "Seconds", "Status", "Failure", "Episode")
    yield table("Episodes", heads, rows, (1, 2, 3, 4))
    yield el("details", el("summary", "Settings"), facts(settings_of(run)), class_="card")
    yield el("p", _METHOD, class_="muted")


def _card(name: str, value: str, detail: str) -> Element:
    return el(
        "div", el("dt", name), el("dd", value), el("dd", detail, class_="muted") if detail else None, class_="card"
    )


def _marked(row: Sequence[str], *, failed: bool) -> list[Child]:
    name, passed, *rest = row
    return [name, el("span", passed, class_="error") if failed else passed, *rest]


def _row(result: EpisodeResult, links: dict[str, Placed] | None) -> tuple[Child, ...]:
    name = name_of(result.key.unit)
    placed = None if links is None else links.get(result.episode_id or "")
    missing = " (not in this page)" if links is not None and placed is None else ""
    stage = "" if result.status.stage is None else f" ({result.status.stage.value})"
    return (
        f"{name}{missing}" if placed is None else placed.link(name),
        str(result.sample),
        "-" if result.score is None else f"{result.score:.4g}",
        str(result.steps),
        f"{result.duration_s:.1f}",
        result.status.code.value.replace("_", " ") + stage,
        failure_text(result),
        result.episode_id or "-",
    )
