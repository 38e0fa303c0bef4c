"""The figures of one evaluation as texts and charts: for its pages, and as data for the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.exports.page.charts import counts, estimates, histogram
from mcpenv.extensions.exports.page.markup import plain_of
from mcpenv.extensions.exports.page.overview import counts_text, number_text
from mcpenv.trajectories.episode import name_of_agent

from .comparison import name_of
from .results import EpisodeResult
from .settings import shown
from .stored_run import StoredRun
from .summary import Estimate, LabelSummary, Summary, TaskSummary, summarize

LABELS = ("Label", "Tasks", "Passed", "pass@1", "95 % interval", "Mean return")
"""The heads of the rows that `label_row` returns."""

_OF_TASKS = ("Passed", "Mean return", "Mean steps", "Failures", "Returns of the episodes")


def report_of(run: StoredRun, *, recorded: bool) -> dict[str, Any]:
    """Return ``title``, ``notes``, ``recorded``, ``charts`` as of `plain_of`, and ``tables``.

    A table has ``title``, ``heads`` and ``rows``. A cell is a text, or a list of episodes, each with its ``id`` in the
    record, a ``text``, and a ``name``.

    Args:
        recorded: True if the evaluation has its record, so that its episodes can be shown.
    """
    summary, unit = summarize(run.results, run.planned or len(run.results), run.pass_threshold), unit_of(run)
    figures = [(name, f"{value} ({detail})" if detail else value) for name, value, detail in figures_of(summary)]
    tables = [
        {"title": "Figures", "heads": ("Figure", "Value"), "rows": figures},
        {"title": f"{unit}s", "heads": (unit, *_OF_TASKS), "rows": list(_of_tasks(run, summary, recorded))},
        *([{"title": "Labels", "heads": LABELS, "rows": [*map(label_row, summary.labels)]}] if summary.labels else []),
        {"title": "Settings", "heads": ("Setting", "Value"), "rows": settings_of(run)},
    ]
    missing = [] if recorded else ["Its folder has no record, so its episodes cannot be shown."]
    notes = [*notes_of(run, summary), *missing]
    charts = [plain_of(chart) for chart in charts_of(run, summary)]
    return {"title": title_of(run), "notes": notes, "recorded": recorded, "charts": charts, "tables": tables}


def title_of(run: StoredRun) -> str:
    """Return the title of a page."""
    return f"Evaluation of {run.environment['name']}"


def unit_of(run: StoredRun) -> str:
    """Return ``Task``, or ``Seed`` for an environment without tasks."""
    return "Seed" if all(result.task is None for result in run.results) else "Task"


SHOWN_PROBLEMS = 3
"""Maximum number of a verifier's problems in a table."""


def agent_of(run: StoredRun) -> str:
    """Return the agent, as its command, name, model or kind in the settings."""
    agent = run.settings.get("agent") or {}
    return agent.get("command") or name_of_agent(agent) or "an agent"


def notes_of(run: StoredRun, summary: Summary) -> Iterator[str]:
    """Yield what a reader must know before the figures."""
    if run.planned is None or run.planned > len(run.results):
        yield "This evaluation has not come to its end: the figures are of its finished episodes."
    if summary.unscored:
        have = "episode has" if summary.unscored == 1 else "episodes have"
        yield (
            f"{summary.unscored} {have} no score, because the environment or the model's endpoint failed; returns and "
            "pass rates do not count them."
        )
    if summary.without_calls:
        yield (
            "No episode has a tool call. The figures say nothing about the agent: was it connected to the environment?"
        )
    if (run.settings.get("agent") or {}).get("isolation") == "not isolated":
        yield (
            "Not isolated. The agent's program ran without bubblewrap, and may have read answers and earlier results."
        )


def figures_of(summary: Summary) -> list[tuple[str, str, str]]:
    """Return the figures of an evaluation, each as its name, its value, and a detail that may be empty."""
    found = [("Episodes", f"{summary.finished} of {summary.planned}", "")]
    found += [(f"pass@{k}", *_estimate(estimate)) for k, estimate in summary.pass_at.items()]
    found += [(f"pass^{k}", *_estimate(estimate)) for k, estimate in summary.pass_hat.items()]
    if summary.mean_return is not None:
        found.append(("Mean return", *_estimate(summary.mean_return)))
    found += [(f"Mean of {name}", number_text(mean), "") for name, mean in summary.components.items()]
    found += [("Without a score", str(summary.unscored), "")] if summary.unscored else []
    steps = "" if summary.median_steps is None else f"median {summary.median_steps:g}, most {summary.max_steps}"
    found += [
        ("Mean steps", number_text(summary.mean_steps), steps),
        ("Mean seconds", number_text(summary.mean_duration_s), ""),
        ("Statuses", counts_text(summary.statuses), ""),
        ("Failures", counts_text(summary.failures) or "none", ""),
    ]
    for name, read, written in (
        ("Tokens", summary.prompt_tokens, summary.completion_tokens),
        ("Tokens of the user", summary.user_prompt_tokens, summary.user_completion_tokens),
    ):
        if read is not None:
            found.append((name, f"{read + (written or 0):,}", f"{read:,} in, {written or 0:,} out"))
    if summary.cost is not None:
        found.append(("Cost", f"{summary.cost:.4f}", "as the endpoint told it"))
    return found


def settings_of(run: StoredRun) -> list[tuple[str, str]]:
    """Return the settings that are not empty, and the pass threshold."""
    threshold = "each task's full reward" if run.pass_threshold is None else f"{run.pass_threshold:g}"
    listed = [(name, shown(value)) for name, value in run.settings.items() if value not in (None, [], "")]
    return [*listed, ("pass threshold", threshold)]


def task_row(task: TaskSummary) -> tuple[str, str, str, str, str]:
    """Return the name of a task, how many samples passed, the means of return and steps, and the failures."""
    return (
        task.name if task.split is None else f"{task.split}/{task.name}",
        "-" if task.passed is None else f"{task.passed}/{task.scored}",
        number_text(task.mean_return),
        number_text(task.mean_steps),
        counts_text(task.failures),
    )


def label_row(label: LabelSummary) -> tuple[str, str, str, str, str, str]:
    """Return the figures of a label as a row under `LABELS`."""
    rate = label.pass_rate
    interval = None if rate is None else rate.interval
    return (
        f"{label.kind} {label.label}",
        str(label.tasks),
        "-" if label.passed is None else f"{label.passed}/{label.scored}",
        "-" if rate is None else number_text(rate.value),
        "-" if interval is None else f"{interval.low:.3f} to {interval.high:.3f}",
        "-" if label.mean_return is None else number_text(label.mean_return.value),
    )


def failure_text(result: EpisodeResult) -> str:
    """Return the kind of a failure with its detail, else the verifier's problems; an empty text without any."""
    failure = "" if result.failure is None else result.failure.value.replace("_", " ")
    if not failure:
        more = len(result.problems) - SHOWN_PROBLEMS
        return "; ".join(result.problems[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
    return f"{failure}: {result.detail}" if result.detail else failure


def _estimate(estimate: Estimate) -> tuple[str, str]:
    value = number_text(estimate.value)
    if estimate.interval is None:
        return value, "too few tasks for an interval"
    low, high = map(number_text, estimate.interval)
    return value, f"95 % interval {low} to {high}, {estimate.tasks} tasks"


def _of_tasks(run: StoredRun, summary: Summary, recorded: bool) -> Iterator[tuple[Any, ...]]:
    for task, results in zip(summary.tasks, run.by_unit().values(), strict=True):
        cells = [episode_cell(result, recorded) for result in sorted(results, key=lambda result: result.sample)]
        yield (*task_row(task), cells)


def episode_cell(result: EpisodeResult, recorded: bool) -> dict[str, str | None]:
    """Return an episode's cell: ``text``, its return, ``name`` for screen readers, and ``id`` if it is recorded."""
    unit = name_of(result.key.unit)
    text = "no score" if result.score is None or result.unscored else number_text(result.score)
    # A name contains the visible text, for visitors who control their browser by speech.
    name = f"{text}: {unit}, sample {result.sample}"
    return {"id": result.episode_id if recorded else None, "text": text, "name": name}


def charts_of(run: StoredRun, summary: Summary) -> Iterator[Element]:
    """Yield the charts that have data. They have no text of tasks, agents or models."""
    if summary.pass_at:
        points = [(str(k), each.value, each.interval) for k, each in summary.pass_at.items()]
        caption = "Probability that at least one of k samples of a task passes, with 95 % intervals."
        yield estimates(points, "k of pass@k", caption)
    returns = [result.score for result in run.results if result.score is not None]
    if returns:
        yield histogram(returns, "return", f"Returns of {len(returns)} scored episodes.")
    if run.results:
        steps = [result.steps for result in run.results]
        yield histogram(steps, "steps", f"Steps of {len(steps)} episodes.")
    kinds = [(kind.replace("_", " "), count) for kind, count in summary.failures.items()]
    if summary.not_passed:
        kinds.append(("not passed", summary.not_passed))
    if kinds:
        yield counts(kinds, "Episodes by failure.")
