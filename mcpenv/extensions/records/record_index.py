"""The index of a record: a row for each episode with the position of its line.

A page therefore reads only its own lines.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.errors import DamagedRecord
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv.trajectories.reader import PATTERNS, Lost
from mcpenv.trajectories.segments import TornTail, pieces
from mcpenv.trajectories.summary import summary_of
from mcpenv_client.scores import reaches

logger = logging.getLogger("mcpenv")

MAX_INDEXED = 100_000
"""Maximum rows. Of a larger record, the oldest episodes are omitted."""

MAX_LEFT_OUT = 20
"""Maximum parts of a record that an answer names as omitted."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one episode.

    Attributes:
        path, offset, line: its segment, the piece there in bytes, and the line in that piece.
        summary: as `summary_of`; ``agent``, its name; ``tools``, the names of called tools; and ``place``, the key of
            the row itself, because two episodes may have the same id.
    """

    path: Path
    offset: int
    line: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The conditions for rows, all of which must hold. None: no condition.

    Attributes:
        task: a part of the task's id.
        text: a substring of the recorded line, ignoring case.
        agent, not_agent: the name of the agent, and a name that it must not have.
    """

    task: str | None = None
    split: str | None = None
    status: str | None = None
    return_min: float | None = None
    tool: str | None = None
    text: str | None = None
    agent: str | None = None
    not_agent: str | None = None

    def means(self, summary: dict[str, Any]) -> bool:
        """Return True if all conditions but `text` hold."""
        earned = summary["return"]
        return (
            (self.task is None or self.task in (summary["task_id"] or ""))
            and (self.split is None or self.split == summary["split"])
            and (self.status is None or self.status == summary["status"])
            and (self.return_min is None or (earned is not None and reaches(earned, self.return_min)))
            and (self.tool is None or self.tool in summary["tools"])
            and (self.agent is None or self.agent == summary["agent"])
            and (self.not_agent is None or self.not_agent != summary["agent"])
        )


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows.

    Attributes:
        total: the number of matching rows.
        rows: the summaries of the page, the newest first.
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
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._segments: dict[Path, _Segment] = {}
        self._rows: list[Row] = []
        self._places: dict[str, Row] = {}
        self._ids: dict[str, Row] = {}
        self._older = 0
        self._searched: tuple[str, dict[str, bool]] = ("", {})

    def find(self, wanted: RowFilter, offset: int, limit: int) -> RowPage:
        """Return a page of the matching rows."""
        with self._lock:
            self._refresh()
            rows = [row for row in self._rows if wanted.means(row.summary)]
            if wanted.text is not None:
                rows = self._with_text(rows, wanted.text.casefold())
            rows.reverse()
            page = [row.summary for row in rows[offset : offset + limit]]
            damaged = sum(len(segment.damaged) for segment in self._segments.values())
            return RowPage(len(rows), page, damaged, self._left_out()[:MAX_LEFT_OUT])

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
        found = {path for pattern in PATTERNS for path in self._directory.glob(pattern)}
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
        if changed:
            self._collect()

    def _collect(self) -> None:
        rows = [row for segment in self._segments.values() for row in segment.rows]
        rows.sort(key=_moment)
        self._older = max(0, len(rows) - MAX_INDEXED)
        self._rows = rows[self._older :]
        self._places = {row.summary["place"]: row for row in self._rows}
        self._ids = {row.summary["id"]: row for row in self._rows}

    def _left_out(self) -> list[dict[str, str]]:
        segments = self._segments.values()
        found = [entry for each in segments for entry in (*each.damaged, *each.torn, *each.lost)]
        if self._older:
            why = f"{self._older} older episodes, because {MAX_INDEXED} are shown; mcpenv trajectories lists them"
            found.insert(0, {"where": "the record", "why": why})
        return found

    def _with_text(self, rows: list[Row], text: str) -> list[Row]:
        """Return the rows with lines that contain a text. The last search is cached for its further pages."""
        if self._searched[0] != text:
            self._searched = (text, {})
        known = self._searched[1]
        unknown: dict[tuple[Path, int], dict[int, str]] = {}
        for row in rows:
            if row.summary["place"] not in known:
                unknown.setdefault((row.path, row.offset), {})[row.line] = row.summary["place"]
        for (path, offset), lines in unknown.items():
            for number, line in _lines_at(path, offset):
                if number in lines:
                    known[lines[number]] = text in line.decode("utf-8", "replace").casefold()
        return [row for row in rows if known.get(row.summary["place"])]


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

    def _rows_of(self, offset: int, text: bytes) -> Iterable[Row]:
        for number, line in _numbered(text):
            if (lost := Lost.from_line(line)) is not None:
                self.lost.append(self._at(offset, str(lost)))
                continue
            try:
                episode = RecordedEpisode.from_line(line)
            except DamagedRecord as error:
                self._damage(self._at(offset, error.reason))
                continue
            place = hashlib.sha256(f"{self._path.name} {offset} {number}".encode()).hexdigest()[:16]
            tools = sorted({step.call.name for step in episode.trajectory.steps})
            agent = None if episode.agent is None else episode.agent.get("name")
            summary = {**summary_of(episode), "place": place, "agent": agent, "tools": tools}
            yield Row(self._path, offset, number, summary)

    def _damage(self, entry: dict[str, str]) -> None:
        self.damaged.append(entry)
        logger.warning("the console leaves out a part of the record: %s: %s", entry["where"], entry["why"])

    def _at(self, offset: int, why: str) -> dict[str, str]:
        return {"where": f"{self._path.name}, byte {offset}", "why": why}


def _moment(row: Row) -> float:
    summary = row.summary
    return float(summary["ended_at"] or summary["started_at"] or 0.0)


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
    yield from _numbered(piece[1])


def _numbered(text: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(text.split(b"\n")) if line.strip())
