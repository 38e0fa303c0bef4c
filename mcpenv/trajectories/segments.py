"""Segments: the files of a record. A segment is a row of gzip members, each the lines of some episodes.

A member is appended by one write. If the process dies in the middle of it, what is there of the member is a torn
tail: its end is missing, no reader takes it for episodes, and nobody writes after it, because every process has
segments of its own.
"""

from __future__ import annotations

import errno
import os
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
"""Zlib's 6 writes 8 % less, and takes three times as long."""

_CHUNK = 1 << 16


class Segment:
    """A file that this process appends to.

    Args:
        writer: tells those who write to the folder apart.
        number: tells the segments of one writer apart; they sort in the order in which they were begun.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, directory: Path, writer: str, number: int) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"episodes-{stamp}-{writer}-{number:06d}.jsonl.gz"
        self.path = directory / name
        self.size = 0
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def append(self, member: bytes) -> None:
        """Add a whole member.

        Raises:
            OSError: it is not there; the segment ends as before, or with a torn tail, and takes no more.
        """
        written = os.write(self._file, member)
        if written != len(member):
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written

    def close(self) -> None:
        """No more."""
        os.close(self._file)


class Segments:
    """The segments of one writer, one after the other.

    Args:
        max_bytes: size above which the next member begins another one.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._last: Segment | None = None
        self._begin()

    def append(self, member: bytes) -> None:
        """Add a whole member.

        Raises:
            OSError: it is not there; the next begins another segment.
        """
        if os.getpid() != self._process:  # forked: what was begun is the parent's
            self._begin()
        segment = self._last
        if segment is None or segment.size >= self._max_bytes:
            self.close()
            self._number += 1
            self._last = segment = Segment(self._directory, self._writer, self._number)
        try:
            segment.append(member)
        except OSError:
            # What follows a torn tail could not be read.
            self.close()
            raise

    def _begin(self) -> None:
        self._process = os.getpid()
        self._writer = f"{self._process}-{secrets.token_hex(4)}"
        self._number = 0
        self._last = None

    def close(self) -> None:
        """Close the last one; what follows begins another.

        Raises:
            OSError: it could not be closed; it is none of ours any more.
        """
        last, self._last = self._last, None
        if last is not None:
            last.close()


def member_of(lines: bytes) -> bytes:
    """Lines as a gzip member. Other threads run meanwhile."""
    return zlib.compress(lines, LEVEL, GZIP)


@dataclass(frozen=True, slots=True)
class TornTail:
    """What is left of episodes whose writer died, or is just at it.

    Attributes:
        path: the segment.
        offset: where it begins, in bytes.
        size: how many bytes of it are there.
    """

    path: Path
    offset: int
    size: int


def members(path: Path) -> Iterator[tuple[int, bytes] | TornTail]:
    """The members of a segment with their offsets, and a torn tail if there is one.

    Raises:
        DamagedRecord: bytes that are no gzip member, or one whose checksum is wrong.
        OSError: the file cannot be read.
    """
    offset, pending = 0, b""
    with path.open("rb") as file:
        while True:
            data = pending or file.read(_CHUNK)
            if not data:
                return
            inflate = zlib.decompressobj(GZIP)
            size, parts = 0, []
            try:
                while data:
                    parts.append(inflate.decompress(data))
                    size += len(data)
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
