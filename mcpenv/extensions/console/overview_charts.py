"""The charts above the records, as cells that the console draws and that its brushes select."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mcpenv.extensions.exports.page.overview import number_text

Cell = tuple[float, float, float, float, float | None, str, str | None]
"""Left, top, width and height from 0 to 1, the strength (None: without a value), the text, and the place of an episode
that it leads to."""


def charts_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the histogram and the scatter of `overview_of`'s figures; nothing without a return.

    Each has ``title``, ``range``, ``cells``, ``ends`` (the first and last text of its axis), ``about``, and ``x`` and
    ``y``: the field of an axis with its bins; ``y`` is None for the histogram.
    """
    if figures["returns"] is None:
        return []
    bars, x, y, cells = (
        figures["returns"],
        figures["scatter"]["x"],
        figures["scatter"]["y"],
        figures["scatter"]["cells"],
    )
    edge, step, worth = _edges(bars), _edges(x), _edges(y)
    most, unscored = max(bars["counts"]), figures["unscored"]
    wide = bars["count"]
    histogram: list[Cell] = [
        (
            at / wide,
            1 - n / most,
            0.9 / wide,
            n / most,
            1,
            f"{edge(at)} to {edge(at + 1)}: {_count(n, 'episode')}",
            None,
        )
        for at, n in enumerate(bars["counts"])
    ]
    strongest = math.log1p(max(n for _, _, n, _ in cells))
    scatter: list[Cell] = [
        (
            column / x["count"],
            1 - (row + 1) / y["count"],
            1 / x["count"],
            1 / y["count"],
            math.log1p(n) / strongest,
            f"{step(column)} to {step(column + 1)} steps, return {worth(row)} to {worth(row + 1)}: "
            f"{_count(n, 'episode')}",
            None,
        )
        for column, row, n, _ in cells
    ]
    return [
        {
            "title": "Returns",
            "range": f"up to {_count(most, 'episode')}",
            "cells": histogram,
            "ends": [edge(0), edge(wide)],
            "about": f"{_count(unscored, 'episode')} without a return." if unscored else "",
            "x": ["return", bars],
            "y": None,
        },
        {
            "title": "Steps by return",
            "range": f"return {worth(0)} to {worth(y['count'])}, upwards",
            "cells": scatter,
            "ends": [f"steps {step(0)}", step(x["count"])],
            "about": "The stronger, the more episodes.",
            "x": ["steps", x],
            "y": ["return", y],
        },
    ]


def heat_of(heat: dict[str, Any]) -> dict[str, Any]:
    """Return tasks by attempt: ``names`` of the tasks, ``cells``, ``range`` and ``about``."""
    tasks = heat["tasks"]
    known = [worth for task in tasks for worth in (task["min"], task["max"]) if worth is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    across = 1 / max([16, *(len(task["attempts"]) for task in tasks)])
    names = [f"{task['split']}/{task['value']}" if task["split"] else task["value"] for task in tasks]
    cells: list[Cell] = [
        (
            at * across,
            row / len(tasks),
            across * 0.95,
            0.92 / len(tasks),
            None if worth is None else (worth - low) / ((high - low) or 1),
            f"{names[row]}, attempt {at + 1}: {'not scored' if worth is None else number_text(worth)}",
            place,
        )
        for row, task in enumerate(tasks)
        for at, (place, worth) in enumerate(task["attempts"])
    ]
    told = f"Returns from {number_text(low)} (faint) to {number_text(high)} (strong). " if known else ""
    return {
        "names": names,
        "cells": cells,
        "range": (f"{len(tasks)} of " if len(tasks) < heat["count"] else "") + _count(heat["count"], "task"),
        "about": f"{told}A task leads to its rollouts, a cell to its episode.",
    }


def _edges(bins: dict[str, float]) -> Callable[[int], str]:
    """Return the function of edges as texts, without the rest that multiplying leaves."""
    return lambda at: f"{bins['start'] + bins['width'] * at:.12g}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
