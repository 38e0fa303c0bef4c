"""The segments, which are the files of a record.

A segment is a row of gzip members, each with the lines of some episodes. A member is appended by one write. If the
process dies during the write, the incomplete member is a torn tail. Readers do not take it for episodes, and no process
writes after it, because every process has segments of its own.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcpenv.errors import DamagedRecord

GZIP = 31
"""zlib's ``wbits`` for a gzip member."""

LEVEL = 1
"""The compression level. Zlib's 6 writes 8 % less, and takes three times as long."""

_CHUNK = 1 << 16

MAX_MEMBER_BYTES = 256 * 1024 * 1024
"""The largest text of a member, in bytes. A record from elsewhere may be a few bytes that become gigabytes."""

_TOO_LONG = "an episode there has more than {} MiB"
_LINE = re.compile(rb"\S[^\n]*")


class Segment:
    """The file that this process appends to.

    Args:
        writer: distinguishes the writers to the folder.
        number: distinguishes the segments of one writer. They sort in the order in which they were begun.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, directory: Path, writer: str, number: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"episodes-{stamp}-{writer}-{number:06d}.jsonl.gz"
        self.path = directory / name
        self.size = 0
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def append(self, member: bytes) -> None:
        """Append a whole member.

        Raises:
            OSError: the member was not written. The segment ends as before, or with a torn tail. Do not append again.
        """
        written = os.write(self._file, member)
        if written != len(member):
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not os.path.samestat(self.path.stat(), os.fstat(self._file)):  # `stat` raises if it was deleted
            raise FileNotFoundError(errno.ENOENT, "the file was replaced")
        self.size += written

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Segments:
    """The segments of one writer, one after the other.

    Args:
        max_bytes: size above which the next member begins another segment.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._last: Segment | None = None
        self._begin()

    def append(self, member: bytes) -> None:
        """Append a whole member.

        Raises:
            OSError: the member was not written. The next member begins another segment.
        """
        if os.getpid() != self._process:  # forked: the segment belongs to the parent
            self._begin()
        segment = self._last
        if segment is None or segment.size >= self._max_bytes:
            self.close()
            self._number += 1
            self._last = segment = Segment(self._directory, self._writer, self._number)
        try:
            segment.append(member)
        except OSError:
            # Data after a torn tail could not be read.
            self.close()
            raise

    def _begin(self) -> None:
        self._process = os.getpid()
        self._writer = f"{self._process}-{secrets.token_hex(4)}"
        self._number = 0
        self._last = None

    def close(self) -> None:
        """Close the current segment. A later member begins another one.

        Raises:
            OSError: the segment could not be closed. It is not used again.
        """
        last, self._last = self._last, None
        if last is not None:
            last.close()


def member_of(lines: bytes) -> bytes:
    """Return lines as a gzip member. Releases the GIL meanwhile."""
    return zlib.compress(lines, LEVEL, GZIP)


@dataclass(frozen=True, slots=True)
class TornTail:
    """The incomplete end of a segment, if its writer died or is still writing.

    Attributes:
        path: the segment.
        offset: where it begins, in bytes.
        size: its size in bytes.
    """

    path: Path
    offset: int
    size: int


def members(path: Path, start: int = 0) -> Iterator[tuple[int, bytes] | TornTail]:
    """Yield the members of a segment with their offsets, and a torn tail if there is one.

    Args:
        path: the segment.
        start: the offset of the first member to read.

    Raises:
        DamagedRecord: bytes that are not a gzip member, or a member with a wrong checksum or too long a text.
        OSError: the file cannot be read.
    """
    offset, pending = start, b""
    with path.open("rb") as file:
        file.seek(start)
        while True:
            data = pending or file.read(_CHUNK)
            if not data:
                return
            inflate = zlib.decompressobj(GZIP)
            size, parts, left = 0, [], MAX_MEMBER_BYTES
            try:
                while data:
                    parts.append(inflate.decompress(data, left + 1))
                    size += len(data)
                    left -= len(parts[-1])
                    if left < 0:
                        raise DamagedRecord(_TOO_LONG.format(MAX_MEMBER_BYTES >> 20), f"{path}, byte {offset}")
                    if inflate.eof:
                        break
                    data = file.read(_CHUNK)
            except zlib.error as error:
                raise DamagedRecord(f"no episode can be read there: {error}", f"{path}, byte {offset}") from error
            if not inflate.eof:
                yield TornTail(path, offset, size)
                return
            pending = inflate.unused_data
            size -= len(pending)
            yield offset, b"".join(parts)
            offset += size


def pieces(path: Path, start: int = 0) -> Iterator[tuple[int, bytes] | TornTail]:
    """Yield the members of a segment, or the lines of its text (``.jsonl``), as `members` does.

    A last line without a line break is a torn tail unless it is whole JSON.
    """
    if path.suffix == ".gz":
        yield from members(path, start)
        return
    for offset, line in text_lines(path, start):
        if not line.endswith(b"\n") and not _is_json(line):
            yield TornTail(path, offset, len(line))
            return
        yield offset, line


def text_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a text (``.jsonl``) with their offsets.

    Raises:
        DamagedRecord: a line that is too long.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(start)
        while line := file.readline(MAX_MEMBER_BYTES + 1):
            if len(line) > MAX_MEMBER_BYTES:
                raise DamagedRecord(_TOO_LONG.format(MAX_MEMBER_BYTES >> 20), f"{path}, byte {start}")
            yield start, line
            start += len(line)


def lines_in(member: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a member that are not blank, each with the place in the member where its text begins."""
    return ((match.start(), match[0]) for match in _LINE.finditer(member))


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
