"""The index of a record: a row for each episode, and where its line is, so that a page of 10,000 reads only itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.errors import DamagedRecord

from .episode import RecordedEpisode
from .reader import PATTERNS
from .segments import TornTail, members
from .summary import summary_of

logger = logging.getLogger("mcpenv")


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one episode.

    Attributes:
        path, offset, line: its segment, the member there in bytes, and the line in that member.
        summary: as `summary_of`, and ``agent`` (the name) and ``tools`` (the names of those called).
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
        text: a part of the episode's line as it is recorded, in any case.
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
            and (self.return_min is None or (earned is not None and earned >= self.return_min))
            and (self.tool is None or self.tool in summary["tools"])
            and (self.agent is None or self.agent == summary["agent"])
            and (self.not_agent is None or self.not_agent != summary["agent"])
        )


class RecordIndex:
    """The rows of a record's compressed segments, also while episodes are being written. Its methods block.

    Attributes:
        damaged: the number of lines and segments that could not be read so far; each is logged once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._by_id: dict[str, Row] = {}
        self._read: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._unreadable: set[Path] = set()
        self.damaged = 0

    def find(self, wanted: RowFilter, offset: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of rows that are wanted, and a page of them, the newest first."""
        rows = [row for row in self._refreshed() if wanted.means(row.summary)]
        if wanted.text is not None:
            text = wanted.text.casefold()
            rows = [row for row in rows if text in self.line_of(row).decode("utf-8", "replace").casefold()]
        rows.reverse()
        return len(rows), [row.summary for row in rows[offset : offset + limit]]

    def get(self, episode_id: str) -> Row | None:
        """Return the last row of that id; None if there is none."""
        self._refreshed()
        return self._by_id.get(episode_id)

    def line_of(self, row: Row) -> bytes:
        """Return the line of an episode.

        Raises:
            DamagedRecord: the segment is not what it was.
        """
        for member in members(row.path, row.offset):
            if isinstance(member, TornTail):
                break
            lines = member[1].splitlines()
            if row.line < len(lines):
                return lines[row.line]
            break
        raise DamagedRecord("the episode is no longer there", f"{row.path}, byte {row.offset}")

    def _refreshed(self) -> list[Row]:
        with self._lock:
            for path in sorted(self._directory.glob(PATTERNS[0])):
                size = path.stat().st_size
                if self._sizes.get(path) != size and path not in self._unreadable:
                    self._sizes[path] = size
                    self._read_on(path)
            return list(self._rows)

    def _read_on(self, path: Path) -> None:
        """Read the members of a segment that were appended since."""
        last = self._read.get(path)
        try:
            for member in members(path, last or 0):
                if isinstance(member, TornTail):
                    return
                offset, text = member
                if offset == last:
                    continue  # the last one that was read; its end is not known
                self._read[path] = offset
                for row in self._rows_of(path, offset, text):
                    self._rows.append(row)
                    self._by_id[row.summary["id"]] = row
        except DamagedRecord as error:
            self.damaged += 1
            self._unreadable.add(path)
            logger.warning("the console shows no further episodes of a damaged segment: %s", error)

    def _rows_of(self, path: Path, offset: int, text: bytes) -> Iterator[Row]:
        for number, line in enumerate(text.splitlines()):
            try:
                episode = RecordedEpisode.from_line(line)
            except DamagedRecord as error:
                self.damaged += 1
                logger.warning("%s, byte %d: the console leaves out an episode: %s", path, offset, error)
                continue
            tools = sorted({step.call.name for step in episode.trajectory.steps})
            agent = None if episode.agent is None else episode.agent.get("name")
            yield Row(path, offset, number, {**summary_of(episode), "agent": agent, "tools": tools})


__all__ = ["RecordIndex", "Row", "RowFilter"]
