"""What a run gave, and on what machine: kept as JSON."""

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
    """A run.

    Attributes:
        effort: how much was measured: "full", "quick" or "smoke".
        date: when, as YYYY-MM-DD.
        machine: on what.
        versions: of what mcpenv runs on.
        rows: by benchmark.
        others: the figures of benchmarks with tables of their own.
    """

    effort: str
    date: str
    machine: str
    versions: dict[str, str]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_now(cls, effort: str) -> Results:
        """A run that begins, here."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls(effort, today, machine(), {name: version(name) for name in MEASURED_WITH})

    def write(self, path: Path) -> None:
        """Keep it."""
        data = {
            "effort": self.effort,
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "rows": {name: [row.to_json() for row in rows] for name, rows in self.rows.items()},
            "others": self.others,
        }
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """What was kept."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Results:
        rows = {name: [Row.from_json(row) for row in rows] for name, rows in data["rows"].items()}
        return cls(data["effort"], data["date"], data["machine"], data["versions"], rows, data["others"])


def machine() -> str:
    """This machine in a line: processors, memory, kernel, Python."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = processor[1].strip() if processor else platform.machine()
    return (
        f"{len(os.sched_getaffinity(0))} cores of {name}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )
