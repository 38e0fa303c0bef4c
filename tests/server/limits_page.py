"""The table of docs/reference/limits.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "limits.md"

Numbers = dict[str, list[tuple[str, float | None]]]
"""By the beginning of a row, what its limit says and where the code has the number."""


def rows() -> list[tuple[str, str]]:
    """Return what the page limits, with the limit."""
    cells = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(what.removeprefix("| "), limit) for what, limit, *_ in cells[1:]]


def begins(row: str, beginning: str) -> bool:
    """Return True if a row has a beginning that ends with a word."""
    return re.match(re.escape(beginning) + r"(?!\w)", row) is not None


def assert_has(beginning: str, numbers: list[tuple[str, float | None]]) -> None:
    """Assert that the first row with a beginning has the numbers."""
    limit = next(limit for row, limit in rows() if begins(row, beginning))
    for form, number in numbers:
        assert number is not None
        assert form.format(f"{number:,g}" if number < 1 else f"{number:,.0f}") in limit
