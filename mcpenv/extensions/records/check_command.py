"""The command ``mcpenv trajectories check``: find unsound episodes of a record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page, note, note_torn, number_of, print_json, print_table, printable
from mcpenv.trajectories.reader import unread_files

from .check import Check, check_record
from .finding import Finding, Kind

FOUND = 1

_SHOWN = 10


def check_command(
    record: Path,
    /,
    *,
    ignore: Annotated[list[Kind] | None, Parameter(negative=(), name_transform=str.lower)] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Find unsound episodes of a record, before they are trained on or reported.

    Looks for duplicates, episodes without calls, failed last calls, tasks that always fail by an error, rewards out of
    range, wrong returns, outliers of cost, and damage.

    Exit status 0: no findings. 1: findings. 2: there is no such record, or it has no episode.

    Args:
        record: Folder that was given as --record, or one of its files.
        ignore: Kind of finding to leave out; may be given several times.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    found = check_record(record, on_torn=note_torn).without(ignore or ())
    for file in unread_files(Path(record)):
        note(f"{printable(file.name)}: not checked; the files of a record are named episodes-*.jsonl.gz")
    if as_json:
        print_json(found.to_plain())
    else:
        _show(Page(sys.stdout), found)
    return FOUND if found.findings else 0


def _show(page: Page, found: Check) -> None:
    tasks = f" of {number_of(found.tasks, 'task')}" if found.tasks else ""
    page.line(f"{number_of(found.episodes, 'episode')}{tasks}")
    if found.repeated:
        page.line(f"{found.repeated} of them repeat an earlier one of the same task and seed call by call")
    for kind in Kind:
        findings = [finding for finding in found.findings if finding.kind is kind]
        if findings:
            page.line()
            _show_kind(page, kind, findings)
    page.line()
    page.line((number_of(len(found.findings), "finding") if found.findings else "no findings", "bold"))


def _show_kind(page: Page, kind: Kind, findings: Sequence[Finding]) -> None:
    rows = [
        (printable(finding.subject), printable(finding.task or ""), printable(finding.text))
        for finding in findings[:_SHOWN]
    ]
    print_table(page, (f"{kind.value} ({len(findings)})", "task", ""), rows)
    if len(findings) > _SHOWN:
        page.line((f"and {len(findings) - _SHOWN} more; --json has all of them", "dim"))
