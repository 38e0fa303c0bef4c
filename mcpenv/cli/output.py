"""Output of commands: results on stdout, everything else on stderr.

Lines are not wrapped, and data is never interpreted as markup.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mcpenv.redaction import Redacting

if TYPE_CHECKING:
    from pathlib import Path

    from mcpenv.trajectories import Lost, TornTail

T = TypeVar("T")

PROGRESS_EVERY_S = 0.2
"""Seconds between updates of a progress line."""


def settle_streams() -> None:
    """Configure stdout and stderr to escape characters that their encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def short_warnings() -> Iterator[None]:
    """Format Python's warnings as one line each while the block runs."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, category, filename, lineno, line=None: (
        f"warning: {message} ({filename}:{lineno})\n"
    )
    try:
        yield
    finally:
        warnings.formatwarning = usual


class Page:
    """The writer of one stream, with colours if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """Print one line of texts, or of (text, style) pairs. It is not wrapped, so that it can be pasted."""
        self._console.print(Text.assemble(" " * indent, *parts), soft_wrap=True)

    def block(self, text: str, indent: int = 0) -> None:
        """Print several lines unchanged."""
        for line in text.split("\n"):
            self.line(line, indent=indent if line.strip() else 0)

    def prose(self, text: str, indent: int = 0) -> None:
        """Print text that a terminal may wrap between words. Each line keeps its own indentation."""
        if not self._console.is_terminal:
            self.block(text, indent)
            return
        for line in text.split("\n"):
            own = len(line) - len(line.lstrip())
            self._console.print(Padding(Text(line.strip()), (0, 0, 0, indent + own)))


def print_table(
    page: Page, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> None:
    """Print rows in columns under their headings; print nothing if there are no rows.

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


def counted(items: Iterable[T], done: str) -> Iterator[T]:
    """Yield the items while a line on stderr counts them (``1200 replayed``), if stderr is a terminal."""
    terminal = sys.stderr.isatty()
    updated = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if terminal and time.monotonic() - updated >= PROGRESS_EVERY_S:
            updated = time.monotonic()
            print(f"\r{count} {done}", end="", file=sys.stderr, flush=True)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def number_of(count: int, noun: str) -> str:
    """Return ``1 episode``, ``2 episodes``; for nouns with a plural in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shown_parts(components: Mapping[str, float]) -> str:
    """Return a reward's components on one line: ``correct 1, cost -0.5``."""
    return ", ".join(f"{name} {value:g}" for name, value in components.items())


def report(message: str) -> None:
    """Print an error on stderr, as one line."""
    Page(sys.stderr).line(("error:", "bold red"), f" {' '.join(message.split())}")


def note(message: str) -> None:
    """Print a note on stderr, as one line."""
    Page(sys.stderr).line((message, "dim"))


def note_torn(tail: TornTail) -> None:
    """Print a note that an unfinished episode at the end of a file is skipped."""
    lost = number_of(tail.size, "byte")
    note(f"{tail.path.name}: skipped the last {lost}, an unfinished episode")


def note_lost(path: Path, lost: Lost) -> None:
    """Print a note about episodes that were lost."""
    note(f"{path.name}: {lost}")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def printable(name: str) -> str:
    """Return an untrusted name with unprintable characters escaped, so that a terminal does not obey them."""
    return name if name.isprintable() else ascii(name)[1:-1]


@contextmanager
def author_output() -> Iterator[None]:
    """Redirect the output of user code and its child processes to stderr while the block runs.

    Stdout is for the command's results, or for the MCP protocol.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def quiet_logs(debug: bool) -> None:
    """Configure logging for commands that do not serve.

    Without ``debug``, each warning appears once, and other messages do not.
    """
    handler = logging.StreamHandler()
    if debug:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("warning: %(message)s"))
        # Logged errors have a traceback; the command itself reports the failure.
        handler.addFilter(lambda record: record.levelno == logging.WARNING)
        handler.addFilter(_Once().filter)
    handler.addFilter(Redacting())
    _send(logging.getLogger("mcpenv"), handler, logging.DEBUG if debug else logging.WARNING)
    for name in ("mcp", "fastmcp", "httpx", "httpx2", "asyncio", "uvicorn"):
        _send(logging.getLogger(name), handler if debug else logging.NullHandler(), logging.INFO)


class _Once:
    """Drops records with the text of an earlier one."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        fresh = text not in self._seen
        self._seen.add(text)
        return fresh


def _send(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
