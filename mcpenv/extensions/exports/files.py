"""Export files: write episodes in a format to a file, a folder or standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.records.reviews import Said
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.tools import Tool

from .atif import atif_document
from .openai import Arguments, openai_row
from .page import Overview, write_page
from .trees import SharedEpisodes

Episodes = Iterable[tuple[RecordedEpisode, Sequence[Tool]]]
"""Episodes, each with the tools that its agent could call. Formats that read them twice iterate twice."""


ENTRY_POINTS = "mcpenv.exports"
"""The entry-point group of formats: a function that returns the row of an episode, or an `ExportFormat`."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of one export.

    Attributes:
        arguments: the form of a call's arguments in OpenAI's format.
        overview: the overview of a page; None for the overview of a record.
        tokenizer: the name or folder of the tokenizer for turns of models whose endpoint gave no tokens.
        reviews: what people said of the episodes, by id.
        tree: write what branches have in common once.
        whole: all episodes of the record, of which those to write are a selection: a group is that of the whole record.
            None: they are the same.
    """

    arguments: Arguments = "text"
    overview: Overview | None = None
    tokenizer: str | None = None
    reviews: Said = field(default_factory=dict)
    tree: bool = False
    whole: Episodes | None = None


Write = Callable[[Episodes, Path | None, ExportOptions], int]
"""Writes episodes to a file, to a folder, or with None to standard output, and returns their number."""


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A format of ``mcpenv trajectories export``.

    Attributes:
        write: writes the episodes. It raises `ConfigurationError` if it cannot, or `OSError`.
        suffix: the suffix of its files.
        binary: True if it cannot be written to standard output.
        tokens: True if it has tokens of a model, and takes `ExportOptions.tokenizer`.
        trees: True if it takes `ExportOptions.tree`.
    """

    write: Write
    suffix: str
    binary: bool = False
    tokens: bool = False
    trees: bool = False


def format_names() -> list[str]:
    """Return the names of the formats of all installed distributions."""
    return sorted(entries_of(ENTRY_POINTS))


def format_of(name: str) -> ExportFormat:
    """Return a format. A function of an episode and its tools is a format of JSONL.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    found = load_entry(entries_of(ENTRY_POINTS)[name], "the format")
    if isinstance(found, ExportFormat):
        return found
    return ExportFormat(write=lambda episodes, out, _: _lines(episodes, found, out), suffix=".jsonl")


def export(episodes: Episodes, name: str, out: Path | None, options: ExportOptions) -> int:
    """Write episodes in the format of a name and return their number.

    Args:
        out: a file; None for standard output. For ATIF: a folder, in which each episode is ``ID.json``, a file
            ``*.json`` for one episode, or ``*.jsonl`` for several.

    Raises:
        ConfigurationError: the format needs a file or a package, or the file cannot be written.
    """
    form = format_of(name)
    if options.tokenizer is not None and not form.tokens:
        raise ConfigurationError(f"{name} has no tokens; leave --tokenizer out")
    if options.tree and not form.trees:
        able = ", ".join(each for each in format_names() if format_of(each).trees)
        raise ConfigurationError(f"{name} has no shared prefixes; leave --tree out, or use one of {able}")
    if out is None and form.binary:
        raise ConfigurationError(
            f"{name} is binary and cannot be written to standard output; add --out FILE{form.suffix}"
        )
    try:
        return form.write(episodes, out, options)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ConfigurationError(f"cannot write {error.filename or out}: {error.strerror or error}") from error


def _parquet(episodes: Episodes, out: Path | None, options: ExportOptions) -> int:
    assert out is not None
    try:
        from .parquet import write_parquet  # pyarrow is large and optional
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise ConfigurationError("parquet needs pyarrow: pip install 'mcpenv[parquet]'") from error
    return write_parquet(episodes, out, tree=options.tree)


Row = Callable[[RecordedEpisode, Sequence[Tool]], dict[str, Any]]


def _lines(episodes: Episodes, row: Row, out: Path | None) -> int:
    """Write one line of JSON for each episode and return their number."""
    return write_lines((row(episode, tools) for episode, tools in episodes), out)


def write_lines(rows: Iterable[Mapping[str, Any]], out: Path | None) -> int:
    """Write rows as JSONL and return their number.

    Args:
        out: a file; None for standard output.
    """
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if out is None:
        return sum(1 for line in lines if sys.stdout.write(line))
    with out.open("w", encoding="utf-8") as file:
        return sum(1 for line in lines if file.write(line))


def _chat_openai(episodes: Episodes, out: Path | None, options: ExportOptions) -> int:
    shared = SharedEpisodes() if options.tree else None

    def row(episode: RecordedEpisode, tools: Sequence[Tool]) -> dict[str, Any]:
        chat = openai_row(episode, tools, options.arguments)
        found = None if shared is None else shared.next(episode, chat)
        return chat if found is None else found.cut(chat)

    return _lines(episodes, row, out)


def _page(episodes: Episodes, out: Path | None, options: ExportOptions) -> int:
    found = (episode for episode, _ in episodes)
    if out is None:
        return write_page(found, sys.stdout, options.overview)
    with out.open("w", encoding="utf-8", newline="\n") as file:
        return write_page(found, file, options.overview)


def _atif(episodes: Episodes, out: Path | None, _: ExportOptions) -> int:
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


CHAT_OPENAI = ExportFormat(write=_chat_openai, suffix=".jsonl", trees=True)
"""JSONL with messages and tools in OpenAI's format."""

PARQUET = ExportFormat(write=_parquet, suffix=".parquet", binary=True, trees=True)
"""A table with one row for each episode."""

ATIF = ExportFormat(write=_atif, suffix=".json")
"""ATIF 1.8, with one document for each episode."""

HTML = ExportFormat(write=_page, suffix=".html")
"""One page for people, without a script and without a network."""
