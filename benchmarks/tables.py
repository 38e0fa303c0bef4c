"""The tables of rows, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .rows import Row, Spread


def tables(rows: Sequence[Row]) -> list[list[list[str]]]:
    """Return the rows as tables. Neighbours with the same figures share one."""
    return [cells(list(same)) for _, same in groupby(rows, key=lambda row: sorted(_names(row)))]


def _names(row: Row) -> set[str]:
    return {name for side in row.sides.values() for name in side}


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return a heading, and a line for each side of each row: its figures, and the ratios of mcpenv's to them."""
    names = list(dict.fromkeys(name for row in rows for side in row.sides.values() for name in side))
    compared = list(dict.fromkeys(name for row in rows for side in row.ratios.values() for name in side))
    lines = [["path", "load", "side", *names, *(f"ratio, {name}" for name in compared)]]
    for row in rows:
        for number, (side, figures) in enumerate(row.sides.items()):
            about = [row.path, row.load] if number == 0 else ["", ""]
            ratios = row.ratios.get(side, {})
            lines.append(
                [
                    *about,
                    side,
                    *(number_of(figures[name]) if name in figures else "" for name in names),
                    *(spread_of(ratios[name]) if name in ratios else "" for name in compared),
                ]
            )
    return lines


def text(lines: Sequence[Sequence[str]]) -> str:
    """Return the tables for a terminal."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < 3 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return the tables for a page."""
    heading, *rest = lines
    rule = ["---" if number < 3 else "---:" for number in range(len(heading))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rest))


def number_of(value: float) -> str:
    """Return three significant digits, or all before the point."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread_of(spread: Spread) -> str:
    """Return the median, with the quartiles where they differ."""
    if number_of(spread.low) == number_of(spread.high):
        return number_of(spread.middle)
    return f"{number_of(spread.middle)} ({number_of(spread.low)}-{number_of(spread.high)})"
