"""Check the contract of an environment for ``mcpenv validate``, and show the findings."""

from __future__ import annotations

import sys

from mcpenv.execution.lifespan import IN_PROCESS
from mcpenv.packaging.target import Target
from mcpenv.testing import ContractViolation, Report, Verdict, check_environment

from .output import Page, number_of, print_json

FAILED = 1
_STYLES = {Verdict.OK: "green", Verdict.FAILED: "bold red", Verdict.WARNING: "yellow", Verdict.SKIPPED: "dim"}


def contract_of(target: Target) -> Report:
    """Return the findings of the contract kit on a target, also if checks failed."""
    try:
        return check_environment(target.make)
    except ContractViolation as violation:
        if violation.report is None:
            raise
        return violation.report
    finally:
        IN_PROCESS.leave()


def show_contract(report: Report, as_json: bool) -> int:
    """Print findings, and return the exit status."""
    failed = report.of(Verdict.FAILED)
    if as_json:
        print_json(
            {
                "ok": not failed,
                "tasks": [],
                "without_oracle": [],
                "contract": [
                    {"check": each.check, "verdict": each.verdict.value, "reason": each.reason}
                    for each in report.findings
                ],
            }
        )
        return FAILED if failed else 0
    page = Page(sys.stdout)
    for each in report.findings:
        reason = f"  {each.reason}" if each.reason else ""
        page.line((f"{each.check:13}", "cyan"), (f"{each.verdict.value:8}", _STYLES[each.verdict]), reason)
    page.line()
    warned = report.of(Verdict.WARNING)
    summary = f"{len(failed)} failed" if failed else "the contract holds"
    notes = f", {number_of(len(warned), 'warning')}" if warned else ""
    page.line(f"No tasks, so the contract was checked: {summary}{notes}")
    return FAILED if failed else 0


__all__ = ["contract_of", "show_contract"]
