"""The index of a record: a row for each episode with the position of its line.

A page therefore reads only its own lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.errors import DamagedRecord
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv.trajectories.reader import PATTERNS, Lost
from mcpenv.trajectories.segments import TornTail, lines_in, pieces

from .reviews import Review, Reviews, Said, facts_of
from .where import EVERYTHING, FIELDS, Condition, forms_of, row_of, texts_of

logger = logging.getLogger("mcpenv")

MAX_INDEXED = 100_000
"""Maximum rows. Of a larger record, the oldest episodes are omitted."""

MAX_SELECTED = 4
"""Maximum answers that are cached."""

MAX_LEFT_OUT = 20
"""Maximum parts of a record that an answer names as omitted."""

MAX_WITHOUT_ROW = 1_000
"""Maximum lines of a segment that are no episode. The rest of a segment with more is not read."""

MAX_LINE_BYTES, MAX_LINE_PARTS = 64 * 1024 * 1024, 1_000_000
"""The longest line that is read, and the most objects and lists in it: a few bytes of a compressed file may be a line
that takes gigabytes of memory."""

_WRITER = re.compile(r"episodes-(?:\d{8}T\d{6}Z-)?(.+?)(?:-\d{6})?\.jsonl(?:\.gz)?")
"""The name of a segment, with its writer: the process id of a server or worker, and a word of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one episode.

    Attributes:
        path, offset, line: its segment, the piece there, and its line in that piece, in bytes.
        summary: as `row_of`, and ``place``, the key of the row itself, because two episodes may have the same id, and
            ``server``, the folder below the record's or, without one, the writer of the segment.
    """

    path: Path
    offset: int
    line: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows.

    Attributes:
        total: the number of matching rows.
        rows: the summaries of the page.
        damaged: the number of lines and segments that cannot be read.
        left_out: the parts of the record without rows: ``where`` (file and place) and ``why``, at most `MAX_LEFT_OUT`.
    """

    total: int
    rows: list[dict[str, Any]]
    damaged: int
    left_out: list[dict[str, str]]


class RecordIndex:
    """The rows of a record, even while episodes are being written. Its methods block, and may be called at once.

    Args:
        directory: the folder of the record. Nothing outside of it is read, whatever its links refer to.
        below: True to read the records in its folders, if it is none itself: those of several servers.
    """

    def __init__(self, directory: Path, *, below: bool = False) -> None:
        self._directory = directory
        own = any(any(directory.glob(pattern)) for pattern in PATTERNS)
        self._patterns = [f"*/{pattern}" for pattern in PATTERNS] if below and not own else []
        self._reviews: dict[Path, Reviews] = {}
        self._said: dict[Path, Said] = {}
        self._lock = threading.Lock()
        self._segments: dict[Path, _Segment] = {}
        self._rows: list[Row] = []
        self._places: dict[str, Row] = {}
        self._ids: dict[str, Row] = {}
        self._older = 0
        self._searched: dict[str, dict[str, bool]] = {}
        self._selected: dict[tuple[str, str], list[Row]] = {}

    def find(self, wanted: Condition = EVERYTHING, offset: int = 0, limit: int = 100, sort: str = "") -> RowPage:
        """Return a page of the matching rows.

        Args:
            sort: a field of conditions to sort by, with ``-`` in front the largest first; rows without a value are
                last. Empty: the newest first.
        """
        rows = self.select(wanted, sort)
        page = [row.summary for row in rows[offset : offset + limit]]
        with self._lock:
            damaged = sum(len(segment.damaged) for segment in self._segments.values())
            return RowPage(len(rows), page, damaged, self._left_out()[:MAX_LEFT_OUT])

    def select(self, wanted: Condition = EVERYTHING, sort: str = "") -> list[Row]:
        """Return all matching rows. The last answers are cached until the record changes: do not change the list."""
        with self._lock:
            self._refresh()
            rows, known, key = self._rows, self._selected, (str(wanted), sort)
            self._searched = {text: self._searched.get(text, {}) for text in texts_of(wanted)} or self._searched
            searched = self._searched
        # Without the lock: a search reads whole segments, and other pages need not wait for it.
        found = known.get(key)
        if found is None:
            found = rows[::-1] if wanted == EVERYTHING else _matching(rows[::-1], wanted, searched)
            found = _sorted(found, sort)
            with self._lock:
                while len(known) >= MAX_SELECTED:
                    known.pop(next(iter(known)))
                known[key] = found
        return found

    @property
    def older(self) -> int:
        """The number of the oldest episodes, which have no row because there are more than `MAX_INDEXED`."""
        with self._lock:
            self._refresh()
            return self._older

    def id_of(self, name: str) -> str | None:
        """Return the id of an episode; None if there is none.

        Args:
            name: its id, or the ``place`` of its row.
        """
        with self._lock:
            self._refresh()
            row = self._ids.get(name) or self._places.get(name)
            return None if row is None else str(row.summary["id"])

    def folder_of(self, name: str) -> Path:
        """Return the folder of the record that has an episode, as `id_of` finds it; the directory without one."""
        with self._lock:
            self._refresh()
            row = self._ids.get(name) or self._places.get(name)
        return self._directory if row is None else row.path.parent

    def reviews_of(self, name: str) -> Sequence[Review]:
        """Return the reviews that stand of an episode, as `id_of` finds it, from the file beside its record."""
        with self._lock:
            self._refresh()
            row = self._ids.get(name) or self._places.get(name)
            return () if row is None else self._said[row.path.parent].get(row.summary["id"], ())

    def beside(self, name: str, wanted: Condition = EVERYTHING, sort: str = "") -> dict[str, Any]:
        """Return the neighbours of an episode among the matching rows, in their order.

        ``position`` counts from 1 and is None if the episode is not among them; ``previous`` and ``next`` are places.
        """
        rows = self.select(wanted, sort)
        with self._lock:
            row = self._ids.get(name) or self._places.get(name)
        at = next((n for n, each in enumerate(rows) if each is row), None)
        places = {n: rows[n].summary["place"] for n in (() if at is None else (at - 1, at + 1)) if 0 <= n < len(rows)}
        before, after = (None, None) if at is None else (places.get(at - 1), places.get(at + 1))
        return {"position": None if at is None else at + 1, "total": len(rows), "previous": before, "next": after}

    def read(self, name: str) -> tuple[bytes, RecordedEpisode] | None:
        """Return the line of an episode, and the episode; None if there is none.

        Args:
            name: the id, which stands for the newest episode with it, or the ``place`` of a row.

        Raises:
            DamagedRecord: its segment has changed.
        """
        with self._lock:
            self._refresh()
            row = self._ids.get(name) or self._places.get(name)
        if row is None:
            return None
        line = next((text for number, text in _lines_at(row.path, row.offset) if number == row.line), b"")
        episode = RecordedEpisode.from_line(line)
        if episode.id != row.summary["id"]:
            raise DamagedRecord("there is another episode now", f"{row.path.name}, byte {row.offset}")
        return line, episode

    def _refresh(self) -> None:
        """Read data appended to the segments since the last call, and forget deleted segments."""
        found = {path for pattern in (*PATTERNS, *self._patterns) for path in self._directory.glob(pattern)}
        changed = False
        for path in sorted(found | self._segments.keys()):
            segment = self._segments.setdefault(path, _Segment(self._directory, path))
            size = path.stat().st_size if path in found and path.exists() else 0
            if size < segment.size:
                changed = True
                segment = self._segments[path] = _Segment(self._directory, path)
            if size != segment.size:
                changed = True
                segment.read_on(size)
            if size == 0:
                del self._segments[path]
        folders = {path.parent for path in self._segments}
        said = {folder: self._reviews.setdefault(folder, Reviews(folder)).said() for folder in folders}
        if changed or said != self._said:
            self._said = said
            self._collect()

    def _collect(self) -> None:
        rows = [row for segment in self._segments.values() for row in segment.rows]
        rows.sort(key=_moment)
        self._older = max(0, len(rows) - MAX_INDEXED)
        self._rows = rows[self._older :]
        self._selected = {}
        for row in self._rows:
            row.summary.update(facts_of(self._said[row.path.parent].get(row.summary["id"], ())))
        self._places = {row.summary["place"]: row for row in self._rows}
        self._ids = {row.summary["id"]: row for row in self._rows}

    def _left_out(self) -> list[dict[str, str]]:
        segments = self._segments.values()
        found = [entry for each in segments for entry in (*each.damaged, *each.torn, *each.lost)]
        if self._older:
            why = f"{self._older} older episodes, because {MAX_INDEXED} are shown; mcpenv trajectories lists them"
            found.insert(0, {"where": "the record", "why": why})
        return found


class _Segment:
    """The cached state of one segment.

    Attributes:
        size: the number of bytes read so far.
        rows: the rows of its episodes.
        damaged, torn, lost: its parts without rows.
    """

    def __init__(self, directory: Path, path: Path) -> None:
        self._directory = directory
        self._path = path
        self._server = _WRITER.sub(r"\1", path.name) if path.parent == directory else path.parent.name
        self._last: int | None = None
        self._unreadable = False
        self.size = 0
        self.rows: list[Row] = []
        self.damaged: list[dict[str, str]] = []
        self.torn: list[dict[str, str]] = []
        self.lost: list[dict[str, str]] = []

    def read_on(self, size: int) -> None:
        """Read the appended data."""
        self.size = size
        if self._unreadable:
            return
        self.torn = []
        if not self._path.resolve().is_relative_to(self._directory.resolve()):
            self._give_up("it is a link to a file outside of the record")
            return
        last = self._last
        try:
            for piece in pieces(self._path, last or 0):
                if isinstance(piece, TornTail):
                    why = f"{piece.size} bytes of an episode that is being written, or whose writer died"
                    self.torn = [self._at(piece.offset, why)]
                    return
                offset, text = piece
                if offset == last:
                    continue  # the last line read; its end is unknown
                self._last = offset
                self.rows += self._rows_of(offset, text)
        except (DamagedRecord, OSError) as error:
            self._give_up(error.reason if isinstance(error, DamagedRecord) else str(error.strerror))

    def _give_up(self, why: str) -> None:
        self._unreadable = True
        at = 0 if self._last is None else self._last
        self._damage(self._at(at, f"{why}; no episode after that byte is shown"))
        self.damaged.insert(0, self.damaged.pop())  # before the lines that led to it, of which not all are named

    def _rows_of(self, offset: int, text: bytes) -> Iterable[Row]:
        name = self._path.relative_to(self._directory).as_posix()
        for number, line in lines_in(text):
            if len(self.damaged) + len(self.lost) >= MAX_WITHOUT_ROW:
                raise DamagedRecord(f"{MAX_WITHOUT_ROW} lines that are no episode")
            try:
                _refuse_large(line)
                if (lost := Lost.from_line(line)) is not None:
                    self.lost.append(self._at(offset, str(lost)))
                    continue
                episode = RecordedEpisode.from_line(line)
            except DamagedRecord as error:
                self._damage(self._at(offset, error.reason))
                continue
            place = hashlib.sha256(f"{name} {offset} {number}".encode()).hexdigest()[:16]
            summary = {**row_of(episode), "place": place, "server": self._server}
            yield Row(self._path, offset, number, summary)

    def _damage(self, entry: dict[str, str]) -> None:
        self.damaged.append(entry)
        logger.warning("the console leaves out a part of the record: %s: %s", entry["where"], entry["why"])

    def _at(self, offset: int, why: str) -> dict[str, str]:
        return {"where": f"{self._path.name}, byte {offset}", "why": why}


def _moment(row: Row) -> float:
    summary = row.summary
    return float(summary["ended_at"] or summary["started_at"] or 0.0)


def _matching(rows: list[Row], wanted: Condition, searched: dict[str, dict[str, bool]]) -> list[Row]:
    """Return the rows that fit. Only lines of rows whose other conditions do not decide it are searched for texts."""

    def holds(row: Row) -> bool | None:
        place = row.summary["place"]
        return wanted.holds(row.summary, lambda text: searched[text].get(place))

    held = [(row, holds(row)) for row in rows]
    unknown: dict[tuple[Path, int], dict[int, Row]] = {}
    for row, fits in held:
        if fits is None:
            unknown.setdefault((row.path, row.offset), {})[row.line] = row
    texts = {text: forms_of(text) for text in searched}
    for (path, offset), lines in unknown.items():
        with contextlib.suppress(DamagedRecord):  # its segment is gone, and with it the row at the next refresh
            for number, line in _lines_at(path, offset):
                if number in lines:
                    said = line.decode("utf-8", "replace").casefold()
                    for text, forms in texts.items():
                        searched[text][lines[number].summary["place"]] = any(form in said for form in forms)
    return [row for row, fits in held if fits or (fits is None and holds(row))]


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    name = sort.removeprefix("-")
    if not name:
        return rows
    kind, key = FIELDS[name]

    def value(row: Row) -> Any:
        found = row.summary[key]
        return found.casefold() if kind == "text" else found

    known = [row for row in rows if row.summary[key] is not None]
    known.sort(key=value, reverse=sort[0] == "-")
    return known + [row for row in rows if row.summary[key] is None]


def _lines_at(path: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a piece of a segment with their numbers.

    Raises:
        DamagedRecord: the segment has changed.
    """
    try:
        piece = next(pieces(path, offset), None)
    except OSError as error:
        raise DamagedRecord(f"the episode is no longer there: {error.strerror}", path.name) from error
    if piece is None or isinstance(piece, TornTail):
        raise DamagedRecord("the episode is no longer there", f"{path.name}, byte {offset}")
    yield from lines_in(piece[1])


def _refuse_large(line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise DamagedRecord(f"the line has more than {MAX_LINE_BYTES >> 20} MiB")
    if line.count(b"{") + line.count(b"[") > MAX_LINE_PARTS:
        raise DamagedRecord(f"the line has more than {MAX_LINE_PARTS} objects and lists")
