"""The command ``mcpenv trajectories export``: write episodes in a format that others read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mcpenv.cli.output import note, number_of
from mcpenv.extensions.evaluation.run_directory import RECORD
from mcpenv.extensions.evaluation.run_page import overview_of_run
from mcpenv.extensions.evaluation.stored_run import read_run
from mcpenv.extensions.records.command import EVERY, Debug, Which, reviews_in
from mcpenv.trajectories import RecordedEpisode, ToolLists, records_of
from mcpenv_client.types.tools import Tool

from .files import ExportOptions, export, format_names

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(format_names())]


def export_episodes(
    record: Path,
    /,
    *,
    form: Annotated[FormatName, Parameter(name=("--format", "-f"))],
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    arguments: Literal["text", "object"] = "text",
    tokenizer: str | None = None,
    tree: Annotated[bool, Parameter(negative=())] = False,
    which: Which = EVERY,
    debug: Debug = False,
) -> int:
    """Export episodes to a format that trainers and viewers read, or to one HTML file for people.

    Args:
        record: Folder that was given as --record, one of its files, or a folder with the records of several servers.
            For html also the folder of an evaluation (--out of mcpenv eval); its figures then come first.
        form: JSONL of chats with tool calls, a Parquet table, ATIF 1.8 documents, a page without script and network,
            JSONL of tokens with masks and rewards: tokens, or the fields of a trainer; or preferences of the people
            who rated episodes in the console: dpo, pairs of the same prompt, or kto, single episodes with a label.
        out: File to write. For atif: a folder, or FILE.json for one episode. Default: standard output.
        arguments: Form of a call's arguments in chat-openai: JSON text as in OpenAI's API, or an object for most
            chat templates.
        tokenizer: Name or folder of the tokenizer of transformers for answers of models whose endpoint gave no tokens.
            Only for formats of tokens.
        tree: Write what branches of an episode have in common once. Each row then has what differs, and names the
            earlier row that has the rest.
        debug: Show the traceback when something fails.
    """
    overview = None
    if form == "html" and (record / RECORD).is_dir():
        overview, record = overview_of_run(read_run(record)), record / RECORD
    whole = None if which == EVERY else _WithTools(record, EVERY)
    options = ExportOptions(
        arguments=arguments, overview=overview, tokenizer=tokenizer, reviews=reviews_in(record), tree=tree, whole=whole
    )
    count = export(_WithTools(record, which), form, out, options)
    note(f"{number_of(count, 'episode')} read")
    return 0


class _WithTools:
    """The selected episodes of a record with their tools, read anew each time."""

    def __init__(self, record: Path, which: Which) -> None:
        self._record = record
        self._which = which

    def __iter__(self) -> Iterator[tuple[RecordedEpisode, Sequence[Tool]]]:
        lists, read = ToolLists(*records_of(self._record)), dict[str | None, Sequence[Tool]]()
        for episode in self._which.of(self._record):
            if episode.tools not in read:
                read[episode.tools] = lists.read(episode.tools)
            yield episode, read[episode.tools]
