"""The failure of an author's code to load, with its place, without frames of mcpenv."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcpenv.redaction import without_known
from mcpenv_client.errors import McpenvError

from .author_files import is_authors


@dataclass(frozen=True)
class Failure:
    """The reason why code does not load, or no longer runs.

    Attributes:
        file: the author's file, relative to the working directory if it is below it; None if unknown.
        line: its line, from 1; None if unknown.
        message: one line: the exception's type and text.
        source: the text of that line.
        traceback: the author's frames and the exception; empty if there are none.
    """

    message: str
    file: str | None = None
    line: int | None = None
    source: str | None = None
    traceback: str = ""


def failure_of(error: BaseException, root: Path) -> Failure:
    """Return the failure for an exception: the innermost cause that was raised in an author's file.

    Args:
        root: the watched folder.
    """
    for each in reversed(list(_causes(error))):
        if isinstance(each, SyntaxError) and each.filename is not None and is_authors(each.filename, root):
            return _located(each, each.filename, each.lineno, each.text, each.msg, [])
        stack = traceback.extract_tb(each.__traceback__)
        frames = [frame for frame in stack if is_authors(frame.filename, root)]
        if frames:
            last = frames[-1]
            return _located(each, last.filename, last.lineno, last.line, str(each), frames)
    text = str(error) if isinstance(error, McpenvError) else _described(error, str(error))
    return Failure(message=_one_line(text))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _located(
    error: BaseException,
    file: str,
    line: int | None,
    source: str | None,
    text: str,
    frames: list[traceback.FrameSummary],
) -> Failure:
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return Failure(
        message=_one_line(_described(error, text)),
        file=_shown(Path(file)),
        line=line,
        source=without_known(source.strip()) or None if source is not None else None,
        traceback=without_known("".join(lines)),
    )


def _described(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _one_line(text: str) -> str:
    return without_known(" ".join(text.split()))


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
