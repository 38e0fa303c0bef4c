"""Output: results on stdout, everything else on stderr. Lines are never broken, and data is never read as markup."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..numerals import number_of

if TYPE_CHECKING:
    from ..recording import TornTail


def settle_streams() -> None:
    """Characters that the terminal or pipe cannot take are escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def short_warnings() -> Iterator[None]:
    """Python's warnings as one line each."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, category, filename, lineno, line=None: (
        f"warning: {message} ({filename}:{lineno})\n"
    )
    try:
        yield
    finally:
        warnings.formatwarning = usual


class Page:
    """Writes to one stream, with colours if it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)

    def line(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """One line; parts are texts, or texts with a style. Never broken, so that it can be pasted."""
        self._console.print(Text.assemble(" " * indent, *parts), soft_wrap=True)

    def block(self, text: str, indent: int = 0) -> None:
        """Several lines as they are."""
        for line in text.split("\n"):
            self.line(line, indent=indent if line.strip() else 0)

    def prose(self, text: str, indent: int = 0) -> None:
        """Text that a terminal may break between words, each line at its own indentation."""
        if not self._console.is_terminal:
            self.block(text, indent)
            return
        for line in text.split("\n"):
            own = len(line) - len(line.lstrip())
            self._console.print(Padding(Text(line.strip()), (0, 0, 0, indent + own)))


def shown_parts(components: Mapping[str, float]) -> str:
    """A reward's named parts on one line: ``correct 1, cost -0.5``."""
    return ", ".join(f"{name} {value:g}" for name, value in components.items())


def report(message: str) -> None:
    """One line on stderr that says what went wrong."""
    Page(sys.stderr).line(("error:", "bold red"), f" {' '.join(message.split())}")


def note(message: str) -> None:
    """One line on stderr."""
    Page(sys.stderr).line((message, "dim"))


def note_torn(tail: TornTail) -> None:
    """What a writer left unfinished, and a command leaves out."""
    lost = number_of(tail.size, "byte")
    note(f"{tail.path.name}: left out the last {lost}, of an episode that was not written to its end")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def printable(name: str) -> str:
    """A name that somebody else gave, as a terminal may have it."""
    return name if name.isprintable() else ascii(name)[1:-1]


@contextmanager
def author_output() -> Iterator[None]:
    """What an environment and its child processes print goes to stderr: stdout is for results, or the protocol."""
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
    """For commands that serve nobody: warnings as one line each; records and tracebacks only with ``debug``."""
    handler = logging.StreamHandler()
    if debug:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("warning: %(message)s"))
        # Errors name an incident and carry a traceback; the command says itself what failed.
        handler.addFilter(lambda record: record.levelno == logging.WARNING)
    _send(logging.getLogger("mcpenv"), handler, logging.DEBUG if debug else logging.WARNING)
    for name in ("mcp", "fastmcp", "httpx", "httpx2", "asyncio"):
        _send(logging.getLogger(name), handler if debug else logging.NullHandler(), logging.INFO)


def _send(logger: logging.Logger, handler: logging.Handler, level: int) -> None:
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
