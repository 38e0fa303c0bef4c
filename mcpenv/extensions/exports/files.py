"""Export files: write episodes in a format to a file, a folder or standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcpenv.errors import ConfigurationError
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.tools import Tool

from .anthropic import anthropic_row
from .atif import atif_document
from .openai import Arguments, openai_row
from .page import Overview, write_page

Episodes = Iterable[tuple[RecordedEpisode, Sequence[Tool]]]
"""Episodes, each with the tools that its agent could call."""


class Format(StrEnum):
    """The format of an export."""

    CHAT_OPENAI = "chat-openai"
    """JSONL with messages and tools in OpenAI's format."""
    CHAT_ANTHROPIC = "chat-anthropic"
    """JSONL with messages, system and tools in Anthropic's format."""
    PARQUET = "parquet"
    """A table with one row for each episode."""
    ATIF = "atif"
    """ATIF 1.8, with one document for each episode."""
    HTML = "html"
    """One page for people, without a script and without a network."""


def export(
    episodes: Episodes,
    form: Format,
    out: Path | None,
    *,
    arguments: Arguments = "text",
    overview: Overview | None = None,
) -> int:
    """Write episodes and return their number.

    Args:
        out: a file; None for standard output. For ATIF: a folder, in which each episode is ``ID.json``, a file
            ``*.json`` for one episode, or ``*.jsonl`` for several.
        arguments: the form of a call's arguments in OpenAI's format.
        overview: the overview of a page; None for that of a record.

    Raises:
        ConfigurationError: the format needs a file or pyarrow, ``*.json`` would not get exactly one episode, or the
            file cannot be written.
    """
    try:
        if form is Format.PARQUET:
            return _parquet(episodes, out)
        if form is Format.CHAT_OPENAI:
            return _lines(episodes, lambda episode, tools: openai_row(episode, tools, arguments), out)
        if form is Format.CHAT_ANTHROPIC:
            return _lines(episodes, anthropic_row, out)
        if form is Format.HTML:
            return _page(episodes, out, overview)
        assert form is Format.ATIF
        return _atif(episodes, out)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigurationError(f"cannot write {error.filename or out}: {error.strerror or error}") from error


def _parquet(episodes: Episodes, out: Path | None) -> int:
    if out is None:
        raise ConfigurationError("parquet is binary and cannot be written to standard output; add --out FILE.parquet")
    try:
        from .parquet import write_parquet  # pyarrow is large and optional
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise ConfigurationError("parquet needs pyarrow: pip install 'mcpenv[parquet]'") from error
    return write_parquet(episodes, out)


Row = Callable[[RecordedEpisode, Sequence[Tool]], dict[str, Any]]


def _lines(episodes: Episodes, row: Row, out: Path | None) -> int:
    """Write one line of JSON for each episode and return their number."""
    lines = (json.dumps(row(episode, tools), ensure_ascii=False) + "\n" for episode, tools in episodes)
    if out is None:
        return sum(1 for line in lines if sys.stdout.write(line))
    with out.open("w", encoding="utf-8") as file:
        return sum(1 for line in lines if file.write(line))


def _page(episodes: Episodes, out: Path | None, overview: Overview | None) -> int:
    found = (episode for episode, _ in episodes)
    if out is None:
        return write_page(found, sys.stdout, overview)
    with out.open("w", encoding="utf-8", newline="\n") as file:
        return write_page(found, file, overview)


def _atif(episodes: Episodes, out: Path | None) -> int:
    if out is None or out.suffix == ".jsonl":
        return _lines(episodes, atif_document, out)
    if out.suffix == ".json":
        found = _documents(episodes)
        document = next(found, None)
        if document is None or next(found, None) is not None:
            many = "no episode" if document is None else "several episodes"
            raise ConfigurationError(
                f"{out} takes exactly one episode, but {many} would be exported; name a folder, or use --id"
            )
        _write(out, document)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for document in _documents(episodes):
        # An orchestrator may choose an id with any characters.
        _write(out / f"{quote(document['trajectory_id'], safe='')[:200]}.json", document)
        count += 1
    return count


def _documents(episodes: Episodes) -> Iterator[dict[str, Any]]:
    return (atif_document(episode, tools) for episode, tools in episodes)


def _write(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
