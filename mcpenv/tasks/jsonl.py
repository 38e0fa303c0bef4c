"""Read the rows of a JSON file: one object a line, or one array of objects. UTF-8, also compressed by gzip.

Empty lines count as lines, but are not rows.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mcpenv.errors import InvalidTasks
from mcpenv_client.types.values import decode

from .columns import Row
from .stored import ListedRows, Rows

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")


def json_rows(file: Path) -> Rows:
    """Return the rows of a file. A compressed file and an array are kept in memory.

    Raises (also methods of the rows):
        InvalidTasks: the file cannot be read, or is not JSON.
    """
    try:
        with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as opened:
            begin = opened.read(1024)
            if begin.removeprefix(codecs.BOM_UTF8).lstrip()[:1] != b"[" and not file.name.endswith(".gz"):
                return JsonlRows(file)
            content = begin + opened.read()
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(file, error) from error
    try:
        items = decode(_without_mark(content))
    except ValueError:  # several lines, or a fault that the error of its line names
        return JsonlRows(file, content)
    return ListedRows(items, f"{file.name}, item") if isinstance(items, list) else JsonlRows(file, content)


class JsonlRows:
    """The lines of a file. Only the offset of each line is kept in memory.

    Args:
        file: the file.
        content: its lines, if they are not the bytes of the file.

    Raises (methods):
        InvalidTasks: if the file cannot be read, or a line is not JSON.
    """

    def __init__(self, file: Path, content: bytes | None = None) -> None:
        self._file = file
        self._content = content
        self._begins = array("Q")
        self._lines = array("Q")

    def every(self) -> Iterator[Row]:
        """Yield every line that is not empty."""
        begin = 0
        try:
            with self._open() as file:
                for line, text in enumerate(file, 1):
                    if _without_mark(text).strip():
                        self._begins.append(begin)
                        self._lines.append(line)
                        yield self._row(len(self._lines) - 1, text)
                    begin += len(text)
        except OSError as error:
            raise _unreadable(self._file, error) from error

    def at(self, number: int) -> Row:
        """Return a row by number."""
        try:
            with self._open() as file:
                file.seek(self._begins[number])
                return self._row(number, file.readline())
        except OSError as error:
            raise _unreadable(self._file, error) from error

    def _open(self) -> IO[bytes]:
        return self._file.open("rb") if self._content is None else io.BytesIO(self._content)

    def _row(self, number: int, text: bytes) -> Row:
        place = f"{self._file.name}, line {self._lines[number]}"
        try:
            return Row(place, decode(_without_mark(text)), index=number)
        except ValueError as error:
            raise InvalidTasks(place, f"the line is not JSON: {error}") from error


def _unreadable(file: Path, error: Exception) -> InvalidTasks:
    return InvalidTasks(str(file), f"the tasks cannot be read: {getattr(error, 'strerror', None) or error}")


def _without_mark(text: bytes) -> bytes:
    """Return a line without the byte order mark that some editors write at the start of a file."""
    return text.removeprefix(codecs.BOM_UTF8)
