"""Pages of one episode, and of many with an overview before them."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TextIO
from xml.etree.ElementTree import Element

from mcpenv.extensions.records.statistics import statistics_of
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv.trajectories.summary import summary_of

from .contents import Contents
from .episode import episode_element
from .markup import FOOT, el, head_of, html_of
from .overview import Placed, overview_of

Overview = Callable[[Sequence[Placed], dict[str, Any]], tuple[str, list[Element]]]
"""Returns the title and the content of an overview: of the episodes in the page, and their `statistics_of`."""

_IN_MEMORY = 8_000_000


def episode_page(episode: RecordedEpisode) -> str:
    """Return the page of one episode."""
    page = io.StringIO()
    write_page([episode], page)
    return page.getvalue()


def write_page(episodes: Iterable[RecordedEpisode], out: TextIO, overview: Overview | None = None) -> int:
    """Write a page of episodes, and return their number. One episode at a time is in memory.

    Args:
        overview: the overview before the episodes. Default: figures and tasks of the record, unless it is one episode.
    """
    placed: list[Placed] = []
    # The overview stands first and links to episodes, so it is known last.
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="\n") as body:
        figures = statistics_of(_written(episodes, body, placed))
        if len(placed) == 1 and overview is None:
            title = f"An episode of {placed[0].summary['environment']}"
            front = [el("h1", title)]
        else:
            title, front = (overview or overview_of)(placed, figures)
        out.write(head_of(title))
        out.writelines(html_of(element) + "\n" for element in front)
        body.seek(0)
        shutil.copyfileobj(body, out)
        out.write(FOOT)
    return len(placed)


def _written(episodes: Iterable[RecordedEpisode], body: IO[str], placed: list[Placed]) -> Iterator[RecordedEpisode]:
    contents = Contents()
    for number, episode in enumerate(episodes, 1):
        fragment = f"episode-{number}"
        placed.append(Placed(summary_of(episode), fragment))
        body.write(html_of(episode_element(episode, contents, fragment)) + "\n")
        yield episode
