"""The overview of an evaluation on a page that also contains its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.exports.page import Overview, Placed
from mcpenv.extensions.exports.page.markup import Child, el, facts, table
from mcpenv.extensions.exports.page.overview import counts_text, number_text

from .results import EpisodeResult
from .settings import shown
from .stored_run import StoredRun
from .summary import Estimate, Summary, summarize


def overview_of_run(run: StoredRun) -> Overview:
    """Return the overview of an evaluation: figures, tasks, settings, and links to its episodes."""

    def overview(placed: Sequence[Placed], figures: dict[str, Any]) -> tuple[str, list[Element]]:
        summary = summarize(run.results, run.planned or len(run.results), run.pass_threshold)
        title = f"Evaluation of {run.environment['name']}"
        links = {each.summary["id"]: each for each in placed}
        return title, [el("h1", title), *_notices(run, placed), *_sections(run, summary, links)]

    return overview


def _notices(run: StoredRun, placed: Sequence[Placed]) -> Iterator[Element]:
    if run.planned is None or run.planned > len(run.results):
        yield el(
            "p", "This evaluation has not come to its end: the figures are of its finished episodes.", class_="warn"
        )
    if len(placed) < len(run.results):
        text = f"{len(placed)} of {len(run.results)} episodes are in this page; the figures are of all."
        yield el("p", text, class_="warn")


def _sections(run: StoredRun, summary: Summary, links: dict[str, Placed]) -> Iterator[Element]:
    unit = "Seed" if all(result.task is None for result in run.results) else "Task"
    yield el("section", facts(figures_of(summary)), class_="card", aria_label="Figures")
    tasks = [
        (
            task.name if task.split is None else f"{task.split}/{task.name}",
            "-" if task.passed is None else f"{task.passed}/{task.scored}",
            number_text(task.mean_return),
            number_text(task.mean_steps),
            counts_text(task.failures),
        )
        for task in summary.tasks
    ]
    yield el("h2", f"{unit}s")
    yield table(f"{unit}s", (unit, "Passed", "Mean return", "Mean steps", "Failures"), tasks, (1, 2, 3))
    yield el("h2", "Episodes")
    rows = [_row(result, links.get(result.episode_id or "")) for result in run.results]
    yield table("Episodes", (unit, "Sample", "Return", "Steps", "Status", "Failure"), rows, (1, 2, 3))
    settings = [(name, shown(value)) for name, value in run.settings.items() if value not in (None, [], "")]
    threshold = "each task's full reward" if run.pass_threshold is None else f"{run.pass_threshold:g}"
    listed = facts([*settings, ("pass threshold", threshold)])
    yield el("details", el("summary", "Settings"), listed, class_="card")


def figures_of(summary: Summary) -> list[tuple[str, str]]:
    """Return the figures of an evaluation as texts, each with its name."""
    found: list[tuple[str, str]] = [("Episodes", f"{summary.finished} of {summary.planned}")]
    found += [(f"pass@{k}", _estimate(estimate)) for k, estimate in summary.pass_at.items()]
    found += [(f"pass^{k}", _estimate(estimate)) for k, estimate in summary.pass_hat.items()]
    if summary.mean_return is not None:
        found.append(("Mean return", _estimate(summary.mean_return)))
    found += [(f"Mean of {name}", number_text(mean)) for name, mean in summary.components.items()]
    found += [("Without a score", str(summary.unscored))] if summary.unscored else []
    found += [
        ("Steps", f"mean {number_text(summary.mean_steps)}, most {summary.max_steps}"),
        ("Seconds", f"mean {number_text(summary.mean_duration_s)}"),
        ("Statuses", counts_text(summary.statuses)),
        ("Failures", counts_text(summary.failures)),
    ]
    if summary.prompt_tokens is not None:
        found.append(("Tokens", f"{summary.prompt_tokens:,} in, {summary.completion_tokens or 0:,} out"))
    if summary.cost is not None:
        found.append(("Cost", f"{summary.cost:.4f}"))
    return found


def _estimate(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{number_text(estimate.value)} (too few tasks for an interval)"
    low, high = map(number_text, estimate.interval)
    return f"{number_text(estimate.value)} (95 % interval {low} to {high}, {estimate.tasks} tasks)"


def _row(result: EpisodeResult, placed: Placed | None) -> tuple[Child, ...]:
    name = f"seed {result.seed}" if result.task is None else f"{result.split}/{result.task}"
    failure = "" if result.failure is None else result.failure.value.replace("_", " ")
    if failure and result.detail:
        failure += f": {result.detail}"
    return (
        f"{name} (not in this page)" if placed is None else placed.link(name),
        str(result.sample),
        number_text(result.score),
        str(result.steps),
        result.status.code.value,
        failure,
    )
