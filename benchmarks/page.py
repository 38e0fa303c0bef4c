"""The page's tables: they stand between markers, and a run writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import budgets
from .results import Results
from .tables import markdown, number_of, tables

_MARKED = re.compile(r"(<!-- figures: (?P<name>[a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(page: Path, results: Results) -> None:
    """Put the figures of a run on the page, at the markers of what it has; what it has not is left as it is."""
    found = sections(results)

    def put(marker: re.Match[str]) -> str:
        name = marker["name"]
        return f"{marker[1]}\n{found[name]}\n\n{marker[3]}" if name in found else marker[0]

    page.write_text(_MARKED.sub(put, page.read_text(encoding="utf-8")), encoding="utf-8")


def names_on(page: Path) -> list[str]:
    """What the markers of a page name."""
    return [marker["name"] for marker in _MARKED.finditer(page.read_text(encoding="utf-8"))]


def sections(results: Results) -> dict[str, str]:
    """Markdown by name."""
    whole = {"run": _about(results), "budgets": markdown(budgets.cells(results))}
    for name, rows in results.rows.items():
        whole[name] = "\n\n".join(markdown(table) for table in tables(rows))
    for name, figures in results.others.items():
        whole[name] = _recording(figures) if name == "recording" else markdown(_plain(figures))
    return whole


def _plain(figures: Mapping[str, Any]) -> list[list[str]]:
    """Figures without rows."""
    return [["figure", "measured"], *_lines("", figures)]


def _lines(prefix: str, figures: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _lines(f"{prefix}{name}, ", value)
        elif isinstance(value, list | tuple):
            yield [f"{prefix}{name}", ", ".join(number_of(each) for each in value)]
        else:
            yield [f"{prefix}{name}", number_of(value)]


def _about(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"{results.date}, on {results.machine}, whose load average had been {results.load:.1f} before; "
        f"a {results.effort} run. {versions}."
    )


def _recording(figures: Mapping[str, Mapping[str, object]]) -> str:
    lines = [["steps", "without, µs", "with, µs", "ratio (quartiles)", "CPU ratio (quartiles)"]]
    for name, of in figures.items():
        step = of["step_us"]
        assert isinstance(step, list | tuple)
        lines.append(
            [
                name,
                *(number_of(value) for value in step),
                *(_spread(of, kind) for kind in ("ratio", "cpu_ratio")),
            ]
        )
    return markdown(lines)


def _spread(of: Mapping[str, object], kind: str) -> str:
    middle, quartiles = of[kind], of[f"{kind}_quartiles"]
    assert isinstance(middle, float) and isinstance(quartiles, list | tuple)
    return f"{middle:.3f} ({quartiles[0]:.3f}-{quartiles[1]:.3f})"
