"""Findings: what came of the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ContractViolation(AssertionError):
    """The environment breaks its contract; the text says what to do.

    Attributes:
        report: everything that was checked, where `check_environment` raised it.
    """

    def __init__(self, text: str, report: Report | None = None) -> None:
        super().__init__(text)
        self.report = report


class ContractWarning(UserWarning):
    """Nothing is broken, but something is costly or could not be tried; the text says what to do."""


class Verdict(StrEnum):
    """What came of one check."""

    OK = "ok"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and what came of it; ``reason`` is empty where it is ok."""

    check: str
    verdict: Verdict
    reason: str = ""


@dataclass(slots=True)
class Report:
    """What was checked. Printed, it has one line per check; ``report["calls"]`` is the finding of one."""

    environment: str
    findings: list[Finding] = field(default_factory=list)

    def of(self, verdict: Verdict) -> list[Finding]:
        """The findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]

    def __getitem__(self, check: str) -> Finding:
        return next(finding for finding in self.findings if finding.check == check)

    def __str__(self) -> str:
        lines = [f"{f.verdict.value:8} {f.check}{': ' if f.reason else ''}{f.reason}" for f in self.findings]
        return "\n".join([self.environment, *lines])
