"""The results of a run and the description of its machine, stored as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .rows import Row

MEASURED_WITH = ("mcpenv", "fastmcp", "mcp", "starlette", "uvicorn", "uvloop", "websockets", "pydantic")
"""Distributions whose versions are noted."""


@dataclass(slots=True)
class Results:
    """The results of a run.

    Attributes:
        effort: how much was measured: "full", "quick" or "smoke".
        date: when, as YYYY-MM-DD.
        machine: on what.
        load: the machine's load average over the minute before it began; above 0 it was not alone.
        versions: of what mcpenv runs on.
        rows: by benchmark.
        others: the figures of benchmarks with tables of their own.
        failed: benchmarks that could not be measured.
    """

    effort: str
    date: str
    machine: str
    load: float
    versions: dict[str, str]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def of_now(cls, effort: str) -> Results:
        """Return an empty result for a run that begins on this machine."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls(
            effort, today, machine(), round(os.getloadavg()[0], 2), {name: version(name) for name in MEASURED_WITH}
        )

    def unlike(self, other: Results) -> list[str]:
        """Return in words the rows that only one of two runs has. Loads may differ."""
        ours, theirs = self._measured(), other._measured()
        return [
            *(f"{name} has no row {row}" for name, row in theirs if (name, row) not in ours),
            *(f"{name} has a new row {row}" for name, row in ours if (name, row) not in theirs),
        ]

    def _measured(self) -> list[tuple[str, str]]:
        """Return benchmarks and their rows: each path once, with every side that it has under some load."""
        found: dict[tuple[str, str], dict[str, None]] = {}
        for name, rows in self.rows.items():
            for row in rows:
                found.setdefault((name, row.path), {}).update(dict.fromkeys(row.sides))
        return [(name, f"{path!r} with {', '.join(sides)}") for (name, path), sides in found.items()]

    def write(self, path: Path) -> None:
        """Write the results to a file."""
        data = {
            "effort": self.effort,
            "date": self.date,
            "machine": self.machine,
            "load": self.load,
            "versions": self.versions,
            "rows": {name: [row.to_json() for row in rows] for name, rows in self.rows.items()},
            "others": self.others,
        }
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Results:
        rows = {name: [Row.from_json(row) for row in rows] for name, rows in data["rows"].items()}
        return cls(data["effort"], data["date"], data["machine"], data["load"], data["versions"], rows, data["others"])


def machine() -> str:
    """Return a description of this machine in a line: processors, memory, kernel, Python."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = processor[1].strip() if processor else platform.machine()
    return (
        f"{len(os.sched_getaffinity(0))} cores of {name}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )
