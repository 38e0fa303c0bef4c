"""Reports: an evaluation as one self-contained HTML page. Requires ``mcpenv[eval]``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .evaluation import Evaluated
from .plots import plots_of
from .run_directory import REPORT
from .summary import Estimate

TEMPLATE = "report.html.j2"


def write_report(evaluated: Evaluated) -> Path:
    """Write the report to the evaluation's folder and return its path."""
    file, whole = evaluated.directory / REPORT, evaluated.directory / f".{REPORT}-{secrets.token_hex(4)}"
    whole.write_text(report_of(evaluated), encoding="utf-8")
    os.replace(whole, file)
    return file


def report_of(evaluated: Evaluated) -> str:
    """Return the report as HTML. Texts of models, agents and tasks are escaped."""
    environment = Environment(
        loader=PackageLoader("mcpenv.extensions.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(number=_number, estimate=_estimate, words=_words)
    summary = evaluated.summary
    # Matplotlib escapes the texts that it draws.
    plots = [(Markup(plot.svg), plot.words) for plot in plots_of(summary, evaluated.results)]
    return environment.get_template(TEMPLATE).render(
        settings=evaluated.settings,
        listed=list(_flat(evaluated.settings)),
        summary=summary,
        isolation=evaluated.isolation,
        results=evaluated.results,
        plots=plots,
    )


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _estimate(estimate: Estimate) -> str:
    if estimate.interval is None:
        return "one task: no interval"
    return f"{_number(estimate.interval.low)} to {_number(estimate.interval.high)}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and values of settings that are not empty, nested ones with a prefix."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name} ")
        elif value not in (None, [], ""):
            yield prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
