"""The reader of a record: a folder, or one of its files, also while episodes are being written to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mcpenv.errors import ConfigurationError, DamagedRecord

from .blobs import FOLDER, Blobs
from .episode import RecordedEpisode
from .lost import Lost
from .segments import TornTail, lines_in, members, text_lines

PATTERNS = ("episodes-*.jsonl.gz", "episodes-*.jsonl")


def read_episodes(
    directory_or_file: Path | str,
    *,
    below: bool = False,
    on_torn: Callable[[TornTail], None] | None = None,
    on_lost: Callable[[Path, Lost], None] | None = None,
) -> Iterator[RecordedEpisode]:
    """Yield the episodes of a record, segment by segment, each in the order in which they ended.

    Images and audio are read from the folder ``blobs`` next to the segment.

    Args:
        directory_or_file: a record's folder, one of its segments, or its text (``.jsonl``, as ``zcat`` prints it).
        below: True to read the records in a folder, as one, if it is none itself: those of several servers.
        on_torn: called with the incomplete end of a segment, if its writer died or is still writing; None: ignore it.
        on_lost: called with a segment and the episodes that its writer lost at that place; None: ignore them.

    Raises:
        ConfigurationError: there is no such record.
        DamagedRecord: bytes other than a torn tail cannot be read. Episodes before them were yielded.
    """
    for path in segments_of(Path(directory_or_file), below=below):
        blobs = Blobs(path.parent)
        for place, text in _lines(path, on_torn):
            if (lost := Lost.from_line(text)) is not None:
                if on_lost is not None:
                    on_lost(path, lost)
                continue
            try:
                yield blobs.restored(RecordedEpisode.from_line(text))
            except DamagedRecord as error:
                raise DamagedRecord(error.reason, place) from error


def lost_in(directory_or_file: Path | str, *, below: bool = False) -> Iterator[tuple[Path, Lost]]:
    """Yield the episodes that writers of a record lost, each with the segment that says so. Reads no episode.

    Args:
        directory_or_file, below: as for `read_episodes`.

    Raises:
        ConfigurationError: there is no such record.
        DamagedRecord: bytes other than a torn tail cannot be read.
    """
    for path in segments_of(Path(directory_or_file), below=below):
        for _, text in _lines(path, None):
            if (lost := Lost.from_line(text)) is not None:
                yield path, lost


def segments_of(path: Path, *, below: bool = False) -> list[Path]:
    """Return the files of a record, in the order in which they were begun.

    Args:
        path, below: as for `read_episodes`. The files of several records are in the order of their folders.

    Raises:
        ConfigurationError: the path does not exist, or is a folder of other files.
    """
    if path.is_dir():
        found = _segments_in(path)
        if below and not found:
            found = [file for folder in sorted(path.iterdir()) if folder.is_dir() for file in _segments_in(folder)]
        # Before its first episode is over, the folder of a record may have these only.
        if not found and any(file.name[0] != "." and file.name not in ("tools", FOLDER) for file in path.iterdir()):
            records = sorted(str(folder) for folder in path.iterdir() if folder.is_dir() and _segments_in(folder))
            hint = f"is it {' or '.join(records)}?" if records else "name the folder that --record was given"
            raise ConfigurationError(f"{path}: this is no record; {hint}")
        return found
    if not path.is_file():
        raise ConfigurationError(f"{path}: there is no such record; name the folder that --record was given")
    return [path]


def records_of(path: Path) -> list[Path]:
    """Return the folders of the records that `read_episodes` reads with ``below=True``, at least one.

    Raises:
        ConfigurationError: as `segments_of`.
    """
    folders = dict.fromkeys(file.parent for file in segments_of(path, below=True))
    return list(folders) or [path]


def unread_files(path: Path) -> list[Path]:
    """Return the compressed files of a record's folder that are not read, because they have other names."""
    if not path.is_dir():
        return []
    return sorted(set(path.glob("*.jsonl.gz")) - set(_segments_in(path)))


def _segments_in(folder: Path) -> list[Path]:
    return sorted(file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file())


def _lines(path: Path, on_torn: Callable[[TornTail], None] | None) -> Iterator[tuple[str, bytes]]:
    """Yield each line with its location."""
    if path.suffix != ".gz":
        for number, (_, line) in enumerate(text_lines(path), 1):
            if line.strip():
                yield f"{path}, line {number}", line
        return
    for member in members(path):
        if isinstance(member, TornTail):
            if on_torn is not None:
                on_torn(member)
            return
        offset, text = member
        # `gzip` of a text makes one member of many lines.
        for _, line in lines_in(text):
            yield f"{path}, byte {offset}", line


__all__ = ["Lost", "TornTail", "lost_in", "read_episodes", "records_of", "segments_of", "unread_files"]
