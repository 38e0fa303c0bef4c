"""The command ``mcpenv trajectories join``: put the turns of models into the record of their episodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page, note_lost, note_torn, number_of, print_json, printable, report
from mcpenv.errors import ConfigurationError
from mcpenv.trajectories import Recorder, ToolLists, read_episodes

from .turn_files import joined, read_turns

LEFT = 1

_SHOWN = 5


def join_command(
    record: Path,
    /,
    *,
    turns: Path,
    out: Path,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Write a record's episodes with the turns of their models to another record.

    Each call of a model is linked to the step that it made, by its id, its time, its tool and its arguments.

    Exit status 0: all turns belong to episodes of the record. 1: some do not, and are not written. 2: nothing was read.

    Args:
        record: Folder that was given as --record, or one of its files.
        turns: Folder that was given to mcpenv model-proxy as --out.
        out: Folder to write the new record to.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    folder = record if record.is_dir() else record.parent
    if out.resolve() == folder.resolve():
        raise ConfigurationError("--out is the record itself; name another folder")
    if any(out.glob("episodes-*")):
        raise ConfigurationError(f"{out} has a record already; name another folder")
    found, lists = read_turns(turns), ToolLists(folder)
    counts = {"episodes": 0, "joined": 0, "turns": 0, "calls": 0, "linked": 0}
    with Recorder(out) as recorder:
        for episode in read_episodes(record, on_torn=note_torn, on_lost=note_lost):
            counts["episodes"] += 1
            if own := found.pop(episode.id, None):
                episode = joined(episode, own)
                calls = [call for turn in own for call in turn.calls]
                counts["joined"] += 1
                counts["turns"] += len(own)
                counts["calls"] += len(calls)
                counts["linked"] += sum(call.step is not None for call in calls)
            if episode.tools is not None:
                episode.tools = recorder.tools.keep(lists.read(episode.tools))
            recorder.write(episode)
    if recorder.counts.lost:
        raise ConfigurationError(f"{number_of(recorder.counts.lost, 'episode')} could not be written to {out}")
    if not counts["episodes"]:
        raise ConfigurationError(f"{record}: there are no episodes")
    if as_json:
        print_json({**counts, "unknown": sorted(found)})
    else:
        page = Page(sys.stdout)
        page.line((f"{counts['joined']} of {number_of(counts['episodes'], 'episode')} joined, to {out}", "bold"))
        page.line(f"{number_of(counts['turns'], 'turn')}, {counts['linked']} of {counts['calls']} calls made a step")
    if found:
        named = ", ".join(map(printable, sorted(found)[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
        report(f"the record has no episode {named}; their turns are not written")
    return LEFT if found else 0
