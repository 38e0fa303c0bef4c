"""Exceptions of user code as one line of text."""

from __future__ import annotations

from pathlib import Path


def describe(error: BaseException, folder: Path | None) -> str:
    """Return an exception of user code as one line: its type, its text, and its place in files below ``folder``."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = " ".join(text.split())
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = _where(error, folder)
    return f"{line} ({where})" if where else line


def _where(error: BaseException, folder: Path | None) -> str | None:
    """Return ``file:line`` of a syntax error, or of the last frame in ``folder``; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}:{error.lineno}"
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if folder is not None and file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts:
            found = f"{_shown(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
