"""Figures of many episodes for charts: a histogram, a scatter, tasks by attempt, and groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from mcpenv_client.scores import ABSOLUTE, reaches

Rows = Sequence[dict[str, Any]]
"""Rows as `row_of` returns them with their ``place``, the newest first."""

BARS, ACROSS, DOWN = 40, 60, 30
"""Maximum bars of the histogram, and maximum columns and rows of the scatter's grid."""

TASKS, ATTEMPTS, GROUPS = 24, 32, 500
"""Maximum tasks of the heat map and of attempts of each, and maximum groups."""

_LARGEST = 1e300
"""The bins of a histogram end here: a larger value is in the last one."""

GROUP_KEYS = ("value", "episodes", "scored", "mean", "min", "max", "steps", "errors")
GROUPED_BY = {
    "task": "task_id",
    "split": "split",
    "level": "level",
    "family": "family",
    "agent": "agent",
    "model": "model",
    "status": "status",
    "policy_version": "policy_version",
}
"""The fields to group by, and their keys in a row."""


def overview_of(rows: Rows) -> dict[str, Any]:
    """Return the figures of rows.

    Returns:
        ``total``, the number of rows. ``returns``: ``start``, ``width`` and ``counts`` of the bars, None without
        a return; ``unscored``, the number of rows without one. ``scatter``: ``x`` (steps) and ``y`` (return) as
        ``start``, ``width`` and ``count`` of a grid, and ``cells`` as lists of column, row, number of episodes and the
        place of one. ``heat``: ``tasks``, their total ``count``, and ``rows``, the tasks with the most episodes, the
        lowest mean first.
    """
    scored = [row for row in rows if row["return"] is not None]
    if not scored:
        return {"total": len(rows), "unscored": len(rows), "returns": None, "scatter": None, "heat": _heat(rows)}
    returns = _Bins([row["return"] for row in scored], BARS)
    counts = Counter(returns.index(row["return"]) for row in scored)
    x = _Bins([row["n_steps"] for row in scored], ACROSS, whole=True)
    y = _Bins([row["return"] for row in scored], DOWN)
    cells: dict[tuple[int, int], list[Any]] = {}
    for row in scored:
        key = (x.index(row["n_steps"]), y.index(row["return"]))
        cells.setdefault(key, [*key, 0, row["place"]])[2] += 1
    return {
        "total": len(rows),
        "unscored": len(rows) - len(scored),
        "returns": {**returns.described(), "counts": [counts[index] for index in range(returns.count)]},
        "scatter": {"x": x.described(), "y": y.described(), "cells": list(cells.values())},
        "heat": _heat(rows),
    }


def groups_of(rows: Rows, by: str, sort: str = "-episodes") -> dict[str, Any]:
    """Return the groups of rows with the same value of a field of `GROUPED_BY`.

    Args:
        sort: the key of a group to sort by, with ``-`` in front the largest first; None is last.

    Returns:
        ``count``, the number of groups, and ``groups``, at most `GROUPS` of them: ``value``, ``split`` (of a group of a
        task), ``episodes``, ``scored``, ``mean``, ``min``, ``max`` of their returns, and the means ``steps`` and
        ``errors``.
    """
    found: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row[GROUPED_BY[by]], row["split"] if by == "task" else None), []).append(row)
    key, groups = sort.removeprefix("-"), [_group(*key, inside) for key, inside in found.items()]
    known = [group for group in groups if group[key] is not None]
    known.sort(key=lambda group: group[key], reverse=sort.startswith("-"))
    known += [group for group in groups if group[key] is None]
    return {"count": len(found), "groups": known[:GROUPS]}


def _group(value: Any, split: str | None, rows: Rows) -> dict[str, Any]:
    returns = [row["return"] for row in rows if row["return"] is not None]
    return {
        "value": value,
        "split": split,
        "episodes": len(rows),
        "scored": len(returns),
        "mean": _mean(returns),
        "min": min(returns, default=None),
        "max": max(returns, default=None),
        "steps": _mean([row["n_steps"] for row in rows]),
        "errors": _mean([row["errors"] for row in rows]),
    }


def _heat(rows: Rows) -> dict[str, Any]:
    tasks: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in rows:
        if row["task_id"] is not None:
            tasks.setdefault((row["task_id"], row["split"]), []).append(row)
    most = sorted(tasks.items(), key=lambda item: -len(item[1]))[:TASKS]
    shown = [
        {
            **_group(*key, inside),
            # In order of time, so that an attempt keeps its column while more are made.
            "attempts": [[row["place"], row["return"]] for row in islice(reversed(inside), ATTEMPTS)],
        }
        for key, inside in most
    ]
    shown.sort(key=lambda task: math.inf if task["mean"] is None else task["mean"])
    return {"count": len(tasks), "tasks": shown}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None


class _Bins:
    """Bins of one width, which is 1, 2 or 5 times a power of ten.

    Attributes:
        count: the number of bins, at most ``most``.
    """

    def __init__(self, values: Sequence[float], most: int, whole: bool = False) -> None:
        low, high = min(values), max(values)
        low, high = (max(-_LARGEST, min(_LARGEST, each)) for each in (low, high))
        self._width = _width((high - low) / (most - 1), low, high)
        if whole:
            self._width = max(1.0, self._width)
        self._first = self._number(low)
        self.count = self._number(high) - self._first + 1

    def index(self, value: float) -> int:
        """Return the bin of a value."""
        return self._number(value) - self._first

    def described(self) -> dict[str, float]:
        """Return ``start``, ``width`` and ``count``."""
        return {"start": self._first * self._width, "width": self._width, "count": self.count}

    def _number(self, value: float) -> int:
        # An edge belongs to the bin above it, also but for rounding: conditions compare returns in that way.
        value = max(-_LARGEST, min(_LARGEST, value))
        number = math.floor(value / self._width)
        if reaches(value, (number + 1) * self._width):
            return number + 1
        return number if reaches(value, number * self._width) else number - 1


def _width(least: float, low: float, high: float) -> float:
    if low == high:
        least = 1.0
    # Narrower bins would be below the tolerance by which conditions compare.
    least = max(least, max(abs(low), abs(high)) * 1e-8, ABSOLUTE * 10)
    power = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least * (1 - 1e-9)), 10 * power)
