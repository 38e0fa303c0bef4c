"""The command ``mcpenv eval compare``: show the differences between two evaluations of the same tasks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from mcpenv.cli.output import Page, note, print_json, print_table, printable
from mcpenv.errors import ConfigurationError

from .comparison import Comparison, LeftOut, compare
from .comparison_tables import FIGURES, LABELS, figure_row, label_row, left_out_by_reason, p_text
from .flip import Flip
from .settings import shown
from .stored_run import StoredRun
from .verdict import notes_on, verdict_of

CHANGED = 1

_LISTED = 20
_NAMED = 3
_FLIPS = ("task", "baseline", "candidate", "change", "p")


def compare_command(
    baseline: Path,
    candidate: Path,
    /,
    *,
    metric: str | None = None,
    pass_threshold: float | None = None,
    fail_on: Literal["change", "worse"] = "change",
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Compare two evaluations on the tasks that both have, and say whether they differ by more than chance.

    pass@1 decides, or the mean return if no episode can pass, unless --metric names another figure. Tasks that have
    changed between the evaluations, or that only one of them has, are omitted and named. The figure that decides is
    shown for each level, family and tag too.

    Exit status 0: no significant change. 1: a significant change. 2: the two cannot be compared.

    Args:
        baseline: Folder that was given to mcpenv eval as --out.
        candidate: Folder of the evaluation to compare with it.
        metric: The figure that decides: return, pass@K, pass^K, steps, seconds or tokens.
        pass_threshold: Minimum return of an episode that passes. Default: the threshold of the figures in the folders.
        fail_on: change: exit with status 1 if the candidate is significantly better or worse. worse: only if it is
            worse.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    if pass_threshold is not None and not math.isfinite(pass_threshold):
        raise ConfigurationError(f"--pass-threshold is {pass_threshold:g}; it must be a finite number")
    found = compare(baseline, candidate, pass_threshold=pass_threshold, metric=metric)
    if as_json:
        print_json(found.to_plain())
    else:
        _show(Page(sys.stdout), found)
    for text in notes_on(found):
        note(printable(text))
    primary = found.primary
    counts = primary.difference.significant and (fail_on == "change" or not primary.better)
    return CHANGED if counts else 0


# -- for people


def _show(page: Page, found: Comparison) -> None:
    rows = [
        ("folder", str(found.baseline.directory), str(found.candidate.directory)),
        ("episodes", _episodes(found.baseline, found.unscored[0]), _episodes(found.candidate, found.unscored[1])),
        *((printable(name), shown(before), shown(now)) for name, before, now in found.settings),
    ]
    print_table(page, ("", "baseline", "candidate"), [tuple(map(printable, row)) for row in rows])
    page.line()
    page.line(f"tasks: {len(found.tasks)} compared, {found.left_out.count} left out")
    for line in _left_out(found.left_out):
        page.line(line, indent=2)
    page.line()
    print_table(page, FIGURES, [figure_row(each) for each in found.figures.values()], right=FIGURES[1:])
    if found.labels:
        page.line()
        page.line(f"{found.primary.name} by label")
        of_labels = [[*map(printable, label_row(each))] for each in found.labels]
        print_table(page, LABELS, of_labels, right=LABELS[1:])
    if "pass@1" in found.figures:
        page.line()
        _show_flips(page, found)
    page.line()
    page.line((verdict_of(found), "bold"))


def _episodes(run: StoredRun, unscored: int) -> str:
    planned = "" if run.planned is None else f" of {max(run.planned, len(run.results))}"
    return f"{len(run.results)}{planned}" + (f", {unscored} without a score" if unscored else "")


def _left_out(left_out: LeftOut) -> Iterator[str]:
    for why, names in left_out_by_reason(left_out):
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield f"{len(names)} {why}: {', '.join(map(printable, names[:_NAMED]))}{more}"


def _show_flips(page: Page, found: Comparison) -> None:
    lost = [flip for flip in found.flips if flip.change < 0]
    gained = [flip for flip in reversed(found.flips) if flip.change > 0]
    same = found.figures["pass@1"].difference.tasks - len(found.flips)
    page.line(f"flips: {len(lost)} lost, {len(gained)} gained, {same} with the same pass rate")
    rows = [_flip(flip) for flip in (*lost[:_LISTED], *gained[:_LISTED])]
    print_table(page, _FLIPS, rows, right=_FLIPS[1:])
    hidden = len(found.flips) - len(rows)
    if hidden:
        page.line((f"and {hidden} more; --json has all of them", "dim"))


def _flip(flip: Flip) -> tuple[str, ...]:
    return (
        printable(flip.task),
        f"{flip.baseline_passed}/{flip.baseline_samples}",
        f"{flip.candidate_passed}/{flip.candidate_samples}",
        f"{flip.change:+.3f}",
        p_text(flip.p),
    )
