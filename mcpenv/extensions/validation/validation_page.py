"""Show a validation: the table of tasks, the parts with their verdicts, and remedies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcpenv.cli.output import Page, number_of, print_table
from mcpenv.extensions.contract.findings import Finding, Verdict

from .parts import Validation
from .tasks import Report, TaskReport

_STYLES = {
    Verdict.OK: "green",
    Verdict.FAILED: "bold red",
    Verdict.WARNING: "yellow",
    Verdict.SKIPPED: "dim",
    Verdict.NOT_APPLICABLE: "dim",
}
_SHOWN = (Verdict.FAILED, Verdict.WARNING)
_SCORES = ("oracle", "nothing", "random", "malformed")


def document_of(validation: Validation, tasks: Report, badge: str | None = None) -> dict[str, Any]:
    """Return a validation as one JSON document."""
    plain = tasks.to_plain()
    return {
        **validation.to_plain(),
        "tasks": plain["tasks"],
        "without_oracle": plain["without_oracle"],
        **({} if badge is None else {"badge": badge}),
    }


def show(validation: Validation, tasks: Report) -> None:
    """Print a validation for a reader."""
    page = Page(sys.stdout)
    if tasks.tasks:
        headings = ("task", "split", *_SCORES, "twice", "")
        print_table(page, headings, [_row(of_task) for of_task in tasks.tasks], right=_SCORES)
        page.line()
    widest = max(len(part.verdict.value) for part in validation.parts)
    for part in validation.parts:
        if part.part in validation.left_out:
            continue  # the last line reports it
        reasons = [finding.reason for finding in part.findings if finding.verdict is part.verdict]
        told = part.summary or (reasons[0] if reasons and part.verdict not in _SHOWN else "")
        page.line(
            (f"{part.part:10}  ", "cyan"),
            (f"{part.verdict.value:{widest}}", _STYLES[part.verdict]),
            f"  {told}".rstrip(),
        )
    for part in validation.parts:
        shown = _SHOWN if part.of(Verdict.FAILED) or part.verdict is Verdict.SKIPPED else (*_SHOWN, Verdict.SKIPPED)
        found = [finding for finding in part.findings if finding.verdict in shown]
        if found:
            page.line()
            page.line((part.part, "bold cyan"))
        for finding in sorted(found, key=lambda each: shown.index(each.verdict)):
            _show_finding(page, finding)
    page.line()
    page.line(summary_of(validation))


def _show_finding(page: Page, finding: Finding) -> None:
    where = f"{finding.where}: " if finding.where else ""
    verdict = (f"{finding.verdict.value:7}", _STYLES[finding.verdict])
    page.line(verdict, f"  {finding.check}: {where}{finding.reason}", indent=2)
    if finding.remedy:
        page.line((finding.remedy, "dim"), indent=11)


def summary_of(validation: Validation) -> str:
    """Return the verdict of all parts on one line. It names the skipped parts."""
    failed, warned = len(validation.of(Verdict.FAILED)), len(validation.of(Verdict.WARNING))
    verdict = f"{validation.target} is {_verdict_of(validation)}"
    if failed:
        verdict += f": {number_of(failed, 'finding')}"
    notes = [number_of(warned, "warning")] if warned else []
    facts = next((part.facts for part in validation.parts if part.part == "tasks"), {})
    if facts.get("played", 0) < facts.get("tasks", 0):
        notes.append(f"{facts['played']} of {facts['tasks']} tasks played")
    for names, said in (
        (validation.not_run, "could not run"),
        (validation.run_in_part, "ran in part"),
        ([part.part for part in validation.parts if part.part in validation.left_out], "skipped"),
        (validation.named(Verdict.NOT_APPLICABLE), "not applicable"),
    ):
        if names:
            notes.append(f"{said}: {', '.join(names)}")
    return "; ".join([verdict, *notes])


def _verdict_of(validation: Validation) -> str:
    """Return the verdict in words. An environment of which a chosen part could not run is not called sound."""
    if not validation.judged:
        return "not judged"
    if validation.of(Verdict.FAILED):
        return "unsound"
    return "sound" if validation.ok else "not known to be sound"


# -- the table of tasks


def _row(of_task: TaskReport) -> tuple[str, ...]:
    played = [score for score in of_task.at_random if score is not None]
    return (
        of_task.task.id,
        of_task.task.split,
        _score(of_task.oracle) if of_task.has_oracle else "none",
        _score(of_task.nothing),
        _score(max(played)) if played else "-",
        _score(of_task.malformed),
        "-" if of_task.repeats is None else "agree" if of_task.repeats else "differ",
        number_of(len(of_task.problems), "problem")
        if of_task.problems
        else "source's rule"
        if of_task.known
        else "sound",
    )


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:g}"


# -- the badge

_COLOURS = {"sound": "#2e7d32", "unsound": "#b3261e"}
_OTHER_COLOUR = "#757575"
_CHARACTER_WIDTH = 6.6
"""Width of a character of the badge's text in pixels, as measured for 11 px Verdana."""


def write_badge(file: Path, validation: Validation) -> str:
    """Write a badge as SVG, and return the line of Markdown that shows it.

    Raises:
        OSError: the file cannot be written.
    """
    verdict = _verdict_of(validation)
    judged = sum(part.verdict in (Verdict.OK, Verdict.WARNING, Verdict.FAILED) for part in validation.parts)
    said = f"{verdict}, {judged} of {len(validation.parts)} parts"
    file.write_text(_svg("mcpenv validate", said, _COLOURS.get(verdict, _OTHER_COLOUR)), encoding="utf-8")
    return f"![mcpenv validate: {said}]({file.name})"


def _svg(left: str, right: str, colour: str) -> str:
    one, other = (round(len(text) * _CHARACTER_WIDTH) + 12 for text in (left, right))
    width = one + other
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{left}: {right}">\n'
        f"  <title>{left}: {right}</title>\n"
        f'  <rect width="{width}" height="20" rx="3" fill="#444"/>\n'
        f'  <path d="M{one} 0h{other - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{other - 3}z" fill="{colour}"/>\n'
        '  <g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">\n'
        f'    <text x="{one / 2:g}" y="14">{left}</text>\n'
        f'    <text x="{one + other / 2:g}" y="14">{right}</text>\n'
        "  </g>\n"
        "</svg>\n"
    )
