"""The command ``mcpenv trajectories reviews``: what people said of episodes, and how much they agree."""

from __future__ import annotations

import sys
from pathlib import Path

from mcpenv.cli.output import Page, note, number_of, print_json, print_table, printable
from mcpenv.trajectories import records_of

from .command import EVERY, AsJson, Debug, Which
from .reviews import Reviews, agreements, said_in

_HEADINGS = ("episode", "task", "return", "rater", "rating", "tags", "note")
_MAX_NOTE = 60


def reviews(record: Path, /, *, which: Which = EVERY, as_json: AsJson = False, debug: Debug = False) -> int:
    """Show the reviews of a record's episodes, and the agreement of each two raters.

    Reviews are written in the console, on the page of an episode. The file reviews.jsonl of the record has them.

    Args:
        record: Folder that was given as --record, one of its files, or a folder with the records of several servers.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    kept = [Reviews(folder) for folder in records_of(record)]
    said = said_in(kept)
    found = [(episode, said[episode.id]) for episode in which.of(record) if episode.id in said]
    agreed = agreements({episode.id: each for episode, each in found})
    for file in kept:
        if file.unreadable:
            note(f"{number_of(file.unreadable, 'line')} of {file.file} cannot be read")
    if as_json:
        listed = [review.model_dump() for _, each in found for review in each]
        print_json({"reviews": listed, "agreement": [each.to_plain() for each in agreed]})
        return 0
    page = Page(sys.stdout)
    rows = []
    for episode, each in found:
        task, earned = episode.trajectory.task, episode.trajectory.earned
        for review in each:
            rated = "" if review.rating is None else str(review.rating)
            remark = review.note if len(review.note) <= _MAX_NOTE else f"{review.note[:_MAX_NOTE]}..."
            about = (episode.id, "" if task is None else task.id, "" if earned is None else f"{earned:g}")
            texts = (review.rater, ", ".join(review.tags), " ".join(remark.split()))
            rater, tags, remark = map(printable, texts)
            rows.append((*map(printable, about), rater, rated, tags, remark))
    print_table(
        page, ("episode", "task", "return", "rater", "rating", "tags", "note"), rows, right=("return", "rating")
    )
    for one in agreed:
        kappa = "unknown" if one.kappa is None else f"{one.kappa:.2f}"
        both = f"{printable(one.one)} and {printable(one.other)}: {number_of(one.episodes, 'episode')} rated by both"
        page.line(f"{both}, {one.equal:.0%} equal, {one.close:.0%} within 1, weighted kappa {kappa}")
    note(f"{number_of(len(rows), 'review')} of {number_of(len(found), 'episode')}")
    return 0
