"""Tables: rows of text in columns, for commands that list things."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .output import Page


def print_table(
    page: Page, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> None:
    """Print rows under their headings; nothing where there are none.

    Args:
        right: headings of the columns that are numbers.
    """
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for number, row in enumerate((headings, *rows)):
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ]
        page.line(("  ".join(cells).rstrip(), "bold" if number == 0 else ""))


def printable(text: str) -> str:
    """A text as a terminal may have it, whoever made it up."""
    return text if text.isprintable() else ascii(text)[1:-1]
