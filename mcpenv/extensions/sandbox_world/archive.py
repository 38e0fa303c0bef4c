"""Pack the files of a sandbox into a tar archive, and read them from one."""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

from .sandbox import MAX_BYTES, Entry

_TYPES = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}


def packed(entries: Iterable[Entry]) -> bytes:
    """Return an archive of files, links and folders, all of which belong to user 0."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            about = tarfile.TarInfo(entry.path)
            about.mode = stat.S_IMODE(entry.mode)
            content = entry.content if isinstance(entry.content, bytes) else b""
            if isinstance(entry.content, str):
                about.type, about.linkname = tarfile.SYMTYPE, entry.content
            elif stat.S_ISDIR(entry.mode):
                about.type = tarfile.DIRTYPE
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
        size = made.tell()
    return made.getvalue()[: size + 2 * tarfile.BLOCKSIZE]  # without padding, which Podman does not read


def unpacked(archive: IO[bytes], top: str) -> Iterator[Entry]:
    """Yield what an archive has, which is read once from its beginning.

    The content of a file above `MAX_BYTES` is not read; it is replaced by more zero bytes than are allowed.

    Args:
        top: the path of the folder in the archive.
    """
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=archive, mode="r|") as tar:
        for member in tar:
            path = _relative(member.name, top)
            if path == ".":
                continue
            mode, content = _TYPES.get(member.type, stat.S_IFREG) | member.mode, _content(tar, member)
            if member.islnk():
                content = bytes(bytearray(contents[_relative(member.linkname, top)]))  # not the same object, for `save`
            if isinstance(content, bytes):
                contents[path] = content
            yield Entry(_text(path), mode, content)


def reader(chunks: Iterator[bytes]) -> IO[bytes]:
    """Return a file from which the chunks are read one after the other."""
    raw: Any = _Chunks(chunks)
    return io.BufferedReader(raw)


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(filter(None, self._chunks), b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | str | None:
    if member.issym():
        return _text(member.linkname)
    if not member.isreg():
        return None
    if member.size > MAX_BYTES:
        return b"\0" * (MAX_BYTES + 1)
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _relative(name: str, top: str) -> str:
    return posixpath.relpath(posixpath.join("/", name), posixpath.join("/", top))


def _text(path: str) -> str:
    return os.fsencode(path).decode(errors="replace")
