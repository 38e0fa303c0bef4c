"""Judge the tasks: each is played by its oracle, idly, at random and with malformed calls, and again."""

from __future__ import annotations

from collections.abc import Callable

from mcpenv.extensions.contract.findings import Verdict
from mcpenv.extensions.validation.tasks import Report, TaskReport, validate
from mcpenv.extensions.validation.tasks.report import SOURCE_PAYS
from mcpenv.extensions.validation.tasks.validate import REMEDY_OF_TOOL

from .candidate import Candidate
from .contract import OF_TASKS, find
from .judged import Judged, some_of

NO_TASKS = "it has no tasks"


def judge_tasks(
    candidate: Candidate,
    into: Judged,
    *,
    report: Report,
    random_seeds: int,
    max_steps: int,
    on_report: Callable[[TaskReport], None] | None = None,
) -> None:
    """Judge the tasks of a candidate.

    Args:
        candidate: the environment.
        into: the findings are added to it.
        report: the observations of each task are added to it.
        random_seeds: the number of random plays of each task.
        max_steps: maximum calls of a random play.
        on_report: called after each task.
    """
    if not candidate.tasks:
        into.not_applicable("tasks", NO_TASKS)
        return
    if not candidate.stands(into):
        return
    for check in OF_TASKS:
        find(candidate, check, into)

    problems: dict[tuple[str, str], list[str]] = {}
    known: dict[str, list[str]] = {}
    crashes: dict[str, list[str]] = {}

    def add(of_task: TaskReport) -> None:
        report.tasks.append(of_task)
        for tool, text in of_task.crashes.items():
            crashes.setdefault(f"{tool} raised {text}", []).append(of_task.task.id)
        if of_task.known:
            known.setdefault(of_task.task.metadata[SOURCE_PAYS], []).append(of_task.task.id)
        for found in zip(of_task.problems, of_task.remedies, strict=True):
            problems.setdefault(found, []).append(of_task.task.id)
        if on_report is not None:
            on_report(of_task)

    validate(candidate.make, candidate.tasks, random_seeds=random_seeds, max_steps=max_steps, on_report=add)
    for (problem, remedy), ids in problems.items():
        into.failed("plays", problem, remedy, some_of(ids))
    for why, ids in known.items():
        reason = f"full score without the work, by the rule of the task's source: {why}"
        into.warning(
            "source's rule", reason, "Leave these tasks out of training, or judge them otherwise", some_of(ids)
        )
    for crash, ids in crashes.items():
        into.warning("crashes", crash, REMEDY_OF_TOOL, some_of(ids))
    into.ok_unless_found("plays")
    into.ok_unless_found("crashes")
    without = [of_task.task.id for of_task in report.tasks if not of_task.has_oracle]
    if without:
        into.warning(
            "oracles",
            "no oracle, so it is not known that the task can be solved",
            "Play it by mcpenv play, which prints the calls as an oracle",
            some_of(without),
        )
    into.ok_unless_found("oracles")
    into.facts["played"], into.facts["tasks"] = len(report.tasks), candidate.size
    unsound = sum(bool(of_task.problems) for of_task in report.tasks)
    into.summary = f"{len(report.tasks)} of {candidate.size} played, {unsound or 'none'} of them unsound"
    if known:
        into.summary += f", {sum(map(len, known.values()))} paid without the work by their source's rule"
    if candidate.source:
        into.facts["source"] = candidate.source
        into.summary += f", from {candidate.source}"
    if any(finding.check in OF_TASKS for finding in into.of(Verdict.FAILED)):
        into.summary += ", and the task set is faulty"
