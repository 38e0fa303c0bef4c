"""Define the results of the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ContractViolation(AssertionError):
    """Raised if an environment violates its contract. The text gives the remedy.

    Attributes:
        problem: the text without the remedy.
        remedy: the action to take; empty if the problem contains it.
        report: all findings, if `check_environment` raised it.
    """

    def __init__(self, problem: str, remedy: str = "", report: Report | None = None) -> None:
        super().__init__(_text(problem, remedy))
        self.problem, self.remedy, self.report = problem, remedy, report


class ContractWarning(UserWarning):
    """The warning about a check that found a cost, or could not be tried. The text gives the remedy.

    Attributes:
        problem, remedy: as for `ContractViolation`.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(_text(problem, remedy))
        self.problem, self.remedy = problem, remedy


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check.
        verdict: its result.
        reason: the problem, or the reason why it was not tried; empty if the verdict is ok.
        where: the task, tool or file; empty for the environment as a whole.
        remedy: the action to take; empty if the reason contains it.
    """

    check: str
    verdict: Verdict
    reason: str = ""
    where: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """The reason, followed by the remedy."""
        return _text(self.reason, self.remedy)


@dataclass(slots=True)
class Report:
    """The findings of all checks. Its text has one line per check; ``report["calls"]`` is the finding of one check."""

    environment: str
    findings: list[Finding] = field(default_factory=list)

    def of(self, verdict: Verdict) -> list[Finding]:
        """Return the findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.findings if finding.check == check)

    def __str__(self) -> str:
        lines = [f"{f.verdict.value:8} {f.check}{': ' if f.reason else ''}{f.text}" for f in self.findings]
        return "\n".join([self.environment, *lines])


def _text(problem: str, remedy: str) -> str:
    return f"{problem}. {remedy}" if remedy else problem
