"""Define the results of a validation: `Judged`, one part with its findings, and `Validation`, all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mcpenv.extensions.contract.findings import Finding, Verdict

_WORST_FIRST = (Verdict.FAILED, Verdict.WARNING, Verdict.OK, Verdict.SKIPPED)


@dataclass(slots=True)
class Judged:
    """The result of one part.

    Attributes:
        part: the name of the part.
        findings: the result of each check. Each problem that a check found is a finding of its own.
        summary: one line about the tests made.
        facts: measurements, as plain data.
        seconds: how long it took.
    """

    part: str
    findings: list[Finding] = field(default_factory=list)
    summary: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its findings. Not applicable, if no check of it applies."""
        found = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.NOT_APPLICABLE)

    def of(self, verdict: Verdict) -> list[Finding]:
        """Return the findings with this verdict."""
        return [finding for finding in self.findings if finding.verdict is verdict]

    def ok(self, check: str) -> None:
        """Add that a check passed."""
        self.findings.append(Finding(check, Verdict.OK))

    def ok_unless_found(self, check: str) -> None:
        """Add that a check passed, if it has no finding."""
        if not any(finding.check == check for finding in self.findings):
            self.ok(check)

    def failed(self, check: str, problem: str, remedy: str, where: str = "") -> None:
        """Add a problem that makes the environment unsound."""
        self.findings.append(Finding(check, Verdict.FAILED, problem, where, remedy))

    def warning(self, check: str, problem: str, remedy: str, where: str = "") -> None:
        """Add something that the author should know."""
        self.findings.append(Finding(check, Verdict.WARNING, problem, where, remedy))

    def not_tried(self, check: str, names: Iterable[str], reason: str) -> None:
        """Add tools that a check could not try, if there are any, so that they are not taken for judged."""
        if known := list(dict.fromkeys(names)):
            remedy = "Call them in the oracle of a task, or give their parameters examples that work"
            self.warning(check, f"not tried, because {reason}", remedy, some_of(known))

    def not_applicable(self, check: str, reason: str) -> None:
        """Add that a check does not apply, with the reason."""
        self.findings.append(Finding(check, Verdict.NOT_APPLICABLE, reason))

    def skipped(self, check: str, reason: str, remedy: str = "") -> None:
        """Add that a check was not tried, with the reason."""
        self.findings.append(Finding(check, Verdict.SKIPPED, reason, remedy=remedy))

    def to_plain(self) -> dict[str, Any]:
        """Return the result as plain JSON data."""
        return {**asdict(self), "verdict": self.verdict, "seconds": round(self.seconds, 3)}


@dataclass(slots=True)
class Validation:
    """The results of all parts of one target.

    Attributes:
        target: its name.
        parts: the results, also of parts that were left out.
        left_out: the names of the parts that were left out.
    """

    target: str
    parts: list[Judged] = field(default_factory=list)
    left_out: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """True if a part was judged, no check failed, and each check of the chosen parts ran, or does not apply."""
        return self.judged and not self.of(Verdict.FAILED) and not self.not_run and not self.run_in_part

    @property
    def judged(self) -> bool:
        """True if a chosen part ran: it could, and it applies."""
        return any(part.verdict in (Verdict.OK, Verdict.WARNING, Verdict.FAILED) for part in self.parts)

    @property
    def not_run(self) -> list[str]:
        """The names of the parts that were chosen and could not run."""
        return [name for name in self.named(Verdict.SKIPPED) if name not in self.left_out]

    @property
    def run_in_part(self) -> list[str]:
        """The names of the parts that ran, but for some of their checks."""
        parts = (part for part in self.parts if part.verdict is not Verdict.SKIPPED)
        return [part.part for part in parts if part.of(Verdict.SKIPPED)]

    def replace_remedies(self, remedies: Mapping[str, str]) -> None:
        """Replace the remedies of problems by those for the name of their check."""
        for part in self.parts:
            part.findings = [
                replace(finding, remedy=remedies.get(finding.check, finding.remedy))
                if finding.verdict in (Verdict.FAILED, Verdict.WARNING)
                else finding
                for finding in part.findings
            ]

    def of(self, verdict: Verdict) -> list[Finding]:
        """Return the findings of all parts with this verdict."""
        return [finding for part in self.parts for finding in part.of(verdict)]

    def named(self, verdict: Verdict) -> list[str]:
        """Return the names of the parts with this verdict."""
        return [part.part for part in self.parts if part.verdict is verdict]

    def __getitem__(self, part: str) -> Judged:
        return next(judged for judged in self.parts if judged.part == part)

    def to_plain(self) -> dict[str, Any]:
        """Return the results as plain JSON data."""
        return {
            "target": self.target,
            "ok": self.ok,
            "judged": self.judged,
            "parts": [part.to_plain() for part in self.parts],
        }


def some_of(names: Iterable[str], most: int = 5) -> str:
    """Return names as a list of at most ``most``, and the number of the others."""
    known = list(names)
    others = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + others
