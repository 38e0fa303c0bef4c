"""Read the rows of a JSONL file: one JSON object a line, UTF-8. Empty lines count as lines, but are not rows."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterator
from pathlib import Path

from mcpenv.errors import InvalidTasks
from mcpenv_client.types.values import decode

from .columns import Row


class JsonlRows:
    """The lines of a file. Only the offset of each line is kept in memory.

    Raises (methods):
        InvalidTasks: if the file cannot be read, or a line is not JSON.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begins = array("Q")
        self._lines = array("Q")

    def every(self) -> Iterator[Row]:
        """Yield every line that is not empty."""
        begin = 0
        try:
            with self._file.open("rb") as file:
                for line, text in enumerate(file, 1):
                    if _without_mark(text).strip():
                        self._begins.append(begin)
                        self._lines.append(line)
                        yield self._row(len(self._lines) - 1, text)
                    begin += len(text)
        except OSError as error:
            raise self._unreadable(error) from error

    def at(self, number: int) -> Row:
        """Return a row by number."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._begins[number])
                return self._row(number, file.readline())
        except OSError as error:
            raise self._unreadable(error) from error

    def _row(self, number: int, text: bytes) -> Row:
        place = f"{self._file.name}, line {self._lines[number]}"
        try:
            return Row(place, decode(_without_mark(text)), index=number)
        except ValueError as error:
            raise InvalidTasks(place, f"the line is not JSON: {error}") from error

    def _unreadable(self, error: OSError) -> InvalidTasks:
        return InvalidTasks(str(self._file), f"the tasks cannot be read: {error.strerror}")


def _without_mark(text: bytes) -> bytes:
    """Return a line without the byte order mark that some editors write at the start of a file."""
    return text.removeprefix(codecs.BOM_UTF8)
