"""The evaluations below a folder, for the console: a row and a report for each, and comparisons of two."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mcpenv.errors import ConfigurationError
from mcpenv_client.errors import InvalidMessage

from .comparison import compare
from .comparison_tables import tables_of
from .run_directory import RECORD
from .run_tables import agent_of, report_of
from .settings import SETTINGS
from .stored_run import StoredRun, read_run
from .summary import summarize
from .verdict import notes_on, verdict_of

LEVELS = 3
"""Maximum depth at which evaluations are searched below the folder."""


class RunListing:
    """The evaluations below a folder. Methods block on files, and may be called at once.

    Args:
        directory: the folder. Nothing outside of it is read, whatever its links refer to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()

    def names(self) -> list[str]:
        """Return the names of the evaluations: their folders, relative to the directory."""
        found = (file for level in range(1, LEVELS + 1) for file in self._directory.glob("*/" * level + SETTINGS))
        inside = (file.parent for file in found if file.resolve().is_relative_to(self._directory))
        return sorted(folder.relative_to(self._directory).as_posix() for folder in inside)

    def rows(self) -> dict[str, Any]:
        """Return ``runs``, and ``left_out``: unreadable folders, each with the reason."""
        runs, left_out = [], []
        for name in self.names():
            try:
                runs.append(_row(name, read_run(self._directory / name)))
            except ConfigurationError as error:
                left_out.append({"where": name, "why": self._without_place(str(error))})
        runs.sort(key=lambda row: -row["started_at"])
        return {"runs": runs, "left_out": left_out}

    def report(self, name: str) -> dict[str, Any]:
        """Return the figures and tasks of an evaluation, as `report_of`.

        Raises:
            InvalidMessage: there is no such evaluation, or it cannot be read.
        """
        self._check("evaluation", name)
        try:
            return report_of(read_run(self._directory / name), recorded=self.record(name) is not None)
        except ConfigurationError as error:
            raise _refused("evaluation", self._without_place(str(error))) from error

    def record(self, name: str) -> Path | None:
        """Return the folder of an evaluation's record; None if there is no such evaluation, or it has no record."""
        if name not in self.names():
            return None
        record = (self._directory / name / RECORD).resolve()
        return record if record.is_dir() and record.is_relative_to(self._directory) else None

    def compare(self, baseline: str, candidate: str, pass_threshold: float | None) -> dict[str, Any]:
        """Return the comparison as `mcpenv eval compare --json`, with its words and tables for a page.

        Raises:
            InvalidMessage: there is no such evaluation, or the two are not comparable.
        """
        for side, name in (("baseline", baseline), ("candidate", candidate)):
            self._check(side, name)
        if pass_threshold is not None and not math.isfinite(pass_threshold):
            raise _refused("pass_threshold", "it must be a finite number")
        try:
            found = compare(self._directory / baseline, self._directory / candidate, pass_threshold=pass_threshold)
        except ConfigurationError as error:
            raise _refused("candidate", self._without_place(str(error))) from error
        plain = found.to_plain()
        plain["baseline"]["directory"], plain["candidate"]["directory"] = baseline, candidate
        return {
            **plain,
            "verdict": verdict_of(found),
            "notes": [self._without_place(note) for note in notes_on(found)],
            "tables": tables_of(found, (self._recorded(baseline), self._recorded(candidate))),
        }

    def _recorded(self, name: str) -> str | None:
        return None if self.record(name) is None else name

    def _check(self, field: str, name: str) -> None:
        if name not in self.names():
            raise _refused(field, f"there is no evaluation {name!r} below the folder")

    def _without_place(self, text: str) -> str:
        return text.replace(f"{self._directory}/", "")


def _row(name: str, run: StoredRun) -> dict[str, Any]:
    summary = summarize(run.results, run.planned or len(run.results), run.pass_threshold)
    first = summary.pass_at.get(1)
    return {
        "name": name,
        "environment": run.environment["name"],
        "agent": agent_of(run),
        "split": run.settings.get("split"),
        "finished": summary.finished,
        "planned": run.planned,
        "pass_at_1": None if first is None else first.value,
        "mean_return": None if summary.mean_return is None else summary.mean_return.value,
        "started_at": min(result.started_at for result in run.results),
    }


def _refused(name: str, message: str) -> InvalidMessage:
    return InvalidMessage(f"{name}: {message}", errors=[{"loc": [name], "msg": message, "type": "value_error"}])
