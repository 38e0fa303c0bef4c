"""The command ``mcpenv trajectories``: list, show and summarize the episodes of a record."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from mcpenv.cli.output import Page, note, note_lost, note_torn, number_of, print_json, print_table, printable
from mcpenv.errors import ConfigurationError, DamagedRecord
from mcpenv.trajectories import RecordedEpisode, read_episodes
from mcpenv.trajectories.episode import Ending
from mcpenv.trajectories.reader import lost_in, records_of
from mcpenv.trajectories.summary import fault_of, summary_of
from mcpenv_client.types.records import StepRecord
from mcpenv_client.types.status import StatusCode

from .chat import prompt_of, text_of
from .images import images_of
from .model_turns import show_turn
from .reviews import Reviews, Said, said_in
from .selection import Selection
from .statistics import statistics_of
from .texts import reward_text, status_text
from .turns_and_steps import turns_and_steps
from .where import WhereError, parse, row_of

_WHICH = Group("Selection", sort_key=10)

AsJson = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Debug = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*", group=_WHICH)
@dataclass(frozen=True, kw_only=True)
class Which:
    """The options that select episodes of a record.

    Attributes:
        id: Only the episode with this id, or with an id that starts with it.
        task: Only episodes of the task with this id.
        split: Only episodes of tasks of this split.
        min_return: Only episodes with a return of at least this.
        ended: Only episodes with this ending.
        limit: Maximum number of episodes.
        where: Only episodes that fit this condition, such as 'return < 0.2 and tool("transfer") and seed > 5'.
    """

    id: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    task: str | None = None
    split: str | None = None
    min_return: float | None = None
    ended: Ending | None = None
    limit: int | None = None
    where: str | None = None

    def of(self, record: Path) -> Iterator[RecordedEpisode]:
        """Return the selected episodes of ``record``; print a note on stderr for each that is unfinished or lost.

        Raises:
            ConfigurationError: there is no such record, the limit is negative, or the condition cannot be read.
        """
        if self.limit is not None and self.limit < 0:
            raise ConfigurationError(f"--limit is {self.limit}; it must be 0 or more")
        try:
            where = parse(self.where or "")
        except WhereError as error:
            raise ConfigurationError(f"--where: {error}, in: {printable(self.where or '')}") from error
        said = reviews_in(record)
        selection = Selection(self.id, self.task, self.split, self.min_return, self.ended, self.limit, where, said)
        return selection.of(read_episodes(record, below=True, on_torn=note_torn, on_lost=note_lost))


def reviews_in(record: Path) -> Said:
    """Return the reviews that stand of the episodes that `Which` selects from.

    Raises:
        ConfigurationError: there is no such record.
    """
    return said_in(map(Reviews, records_of(record)))


EVERY = Which()
"""The filter without conditions."""


def list_episodes(
    record: Path,
    /,
    *,
    which: Which = EVERY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """List the episodes of a record.

    Args:
        record: Folder that was given as --record, one of its files, or a folder with the records of several servers.
        as_json: Print one line with a JSON document for each episode.
        debug: Show the traceback when something fails.
    """
    found = which.of(record)
    if as_json:
        said = reviews_in(record)
        for episode in found:
            print(json.dumps(row_of(episode, said.get(episode.id, ())), ensure_ascii=False))
        return 0
    rows = [_row(episode) for episode in found]
    print_table(Page(sys.stdout), _HEADINGS, rows, right=("steps", "return"))
    note(number_of(len(rows), "episode"))
    return 0


def show(
    record: Path,
    episode_id: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    images: Path | None = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Show one episode: its prompt, each call with result and reward, its end, and the requests to its model.

    Args:
        record: Folder that was given as --record, one of its files, or a folder with the records of several servers.
        episode_id: The episode's id, or the start of it. A record of one episode needs none.
        images: Folder to write the episode's images to, such as screenshots. Existing files are replaced.
        as_json: Print the episode's full record as one JSON document.
        debug: Show the traceback when something fails.
    """
    episode = _only(record, episode_id or "")
    files = {} if images is None else _write_images(images, episode)
    if as_json:
        print_json(json.loads(episode.line()))
    else:
        _show(Page(sys.stdout), episode, files)
    with contextlib.suppress(DamagedRecord):  # after the episode
        for path, lost in lost_in(record, below=True):
            note_lost(path, lost)
    if images is not None:
        note(f"{number_of(sum(map(len, files.values())), 'image')} in {images}")
    return 0


def stats(
    record: Path,
    /,
    *,
    which: Which = EVERY,
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Show statistics of episodes: endings, statuses, returns, steps, tools and tasks.

    Args:
        record: Folder that was given as --record, one of its files, or a folder with the records of several servers.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    figures = statistics_of(which.of(record))
    if as_json:
        print_json(figures)
    else:
        _show_figures(Page(sys.stdout), figures)
    return 0


# -- reading


def _only(record: Path, beginning: str) -> RecordedEpisode:
    found: RecordedEpisode | None = None
    for episode in Selection(id=beginning).of(read_episodes(record, below=True)):
        if episode.id == beginning:
            return episode
        if found is not None and found.id != episode.id:
            how = f"several episode ids start with {beginning!r}" if beginning else f"{record} has several episodes"
            several = f"{how}, such as {found.id} and {episode.id}"
            raise ConfigurationError(f"{several}. To list them: mcpenv trajectories list {record}")
        found = episode
    if found is None:
        raise ConfigurationError(
            f"{record}: there is no episode {beginning!r}" if beginning else f"{record}: no episode"
        )
    return found


# -- output

_HEADINGS = ("id", "task", "environment", "steps", "return", "ending", "status", "when")


def _row(episode: RecordedEpisode) -> tuple[str, ...]:
    seen = summary_of(episode)
    task = "" if seen["task_id"] is None else f"{seen['split']}/{seen['task_id']}"
    return (
        printable(episode.id),
        printable(task),
        seen["environment"],
        str(seen["n_steps"]),
        "" if seen["return"] is None else f"{seen['return']:g}",
        printable(seen["ending"]),
        seen["status"] or "",
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen["ended_at"] or seen["started_at"])),
    )


def _write_images(folder: Path, episode: RecordedEpisode) -> dict[int, list[str]]:
    """Write the images of an episode. Return their files, by step; step 0 is the reset.

    Raises:
        ConfigurationError: a file cannot be written, or the record lacks an image.
    """
    files: dict[int, list[str]] = {}
    for image in images_of(episode):
        if image.data is None:
            missing = f"the file blobs/{image.blob} is missing" if image.blob else "its data is not base64 text"
            raise ConfigurationError(f"--images: step {image.step} of the episode has an image, but {missing}")
        file = folder / image.file_name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image.data)
        except OSError as error:
            raise ConfigurationError(f"--images: {file}: {error.strerror}") from error
        files.setdefault(image.step, []).append(str(file))
    return files


def _show(page: Page, episode: RecordedEpisode, files: Mapping[int, Sequence[str]]) -> None:
    trajectory = episode.trajectory
    version = f" {episode.environment.version}" if episode.environment.version else ""
    page.line((printable(episode.id), "bold"), f"  {episode.environment.name}{version}")
    if trajectory.task is not None:
        page.line(f"task {trajectory.task.split}/{trajectory.task.id}, version {trajectory.task.version}")
    given = [] if trajectory.seed is None else [f"seed {trajectory.seed}"]
    given += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in trajectory.options.items()]
    if given:
        page.line(printable(", ".join(given)))
    if trajectory.forked_from is not None:
        page.line(f"continues {trajectory.forked_from.episode_id} after step {trajectory.forked_from.step}")
    page.line()
    page.block(_clean(prompt_of(episode)))
    _show_images(page, files.get(0, ()), indent=0)
    if trajectory.dropped:
        page.line((f"({number_of(trajectory.dropped, 'step')} before these not in the record)", "dim"))
    for each in turns_and_steps(episode):
        page.line()
        if isinstance(each, StepRecord):
            _show_step(page, episode, each)
            _show_images(page, files.get(each.call.step, ()), indent=3)
        else:
            show_turn(page, *each)
    page.line()
    if trajectory.end_reward is not None:
        page.line("at the end: ", printable(reward_text(trajectory.end_reward)))
    if trajectory.verified is not None:
        page.line("verified: ", printable(reward_text(trajectory.verified)))
    for title, sentences in (("problems", trajectory.problems), ("changes of the world", trajectory.changes)):
        page.block("\n".join([f"{title}:", *map(printable, sentences)]) if sentences else "")
    reason = f" ({printable(trajectory.reason)})" if trajectory.reason and trajectory.reason != episode.ending else ""
    earned = trajectory.earned
    total = "not scored" if earned is None else f"return {earned:g}"
    fault = fault_of(trajectory)
    if fault is not None:
        total += f", but incomplete: scoring failed ({fault})"
    if trajectory.status is not None:
        page.line("status: ", printable(status_text(trajectory.status)))
    page.line((f"{printable(episode.ending)}{reason}, {total}", "bold"))


def _show_step(page: Page, episode: RecordedEpisode, step: StepRecord) -> None:
    arguments = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in step.call.arguments.items())
    page.line(
        (f"{step.call.step}. ", "dim"), (printable(step.call.name), "bold cyan"), printable(f"({arguments})"),
        (f"  {step.call.plane.value}, {step.outcome.duration_s * 1000:.1f} ms", "dim"),
    )  # fmt: skip
    if step.outcome.error is not None:
        page.line((f"{step.outcome.error.error_type.value}: ", "red"), indent=3)
    page.block(_clean(text_of(episode, step)), indent=3)
    if step.reward is not None:
        page.line(("reward ", "green"), printable(reward_text(step.reward)), indent=3)
    if step.fault is not None:
        page.line((f"the environment failed: {step.fault}", "red"), indent=3)
    if step.status.code is not StatusCode.COMPLETED:
        page.line(("status ", "dim"), printable(status_text(step.status)), indent=3)


def _show_images(page: Page, files: Sequence[str], indent: int) -> None:
    for file in files:
        page.line(("image ", "dim"), printable(file), indent=indent)


def _clean(text: str) -> str:
    """Return a tool's text with control characters escaped, so that a terminal does not obey them."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.splitlines())


def _show_figures(page: Page, figures: dict[str, Any]) -> None:
    count = figures["episodes"]
    page.line((number_of(count, "episode"), "bold"))
    if not count:
        return
    page.line()
    rows: list[tuple[str, ...]]
    rows = [(printable(name), str(number), f"{number / count:.1%}") for name, number in figures["endings"].items()]
    print_table(page, ("ending", "episodes", "share"), rows, right=("episodes", "share"))
    page.line()
    rows = [(name, str(number), f"{number / count:.1%}") for name, number in figures["statuses"].items()]
    print_table(page, ("status", "episodes", "share"), rows, right=("episodes", "share"))
    page.line()
    spreads = [(name, figures[name]) for name in ("return", "steps") if figures[name] is not None]
    names = tuple(spreads[0][1])
    rows = [(name, *(f"{spread[column]:g}" for column in names)) for name, spread in spreads]
    print_table(page, ("", *names), rows, right=names)
    if figures["tools"]:
        page.line()
        rows = [
            (printable(name), str(tool["calls"]), str(tool["errors"]), f"{tool['error_rate']:.1%}", _types(tool))
            for name, tool in figures["tools"].items()
        ]
        print_table(page, ("tool", "calls", "errors", "rate", ""), rows, right=("calls", "errors", "rate"))
    if figures["tasks"]:
        page.line()
        rows = [
            (
                printable(f"{task['split']}/{task['id']}"),
                str(task["episodes"]),
                "" if task["mean_return"] is None else f"{task['mean_return']:g}",
            )
            for task in figures["tasks"]
        ]
        print_table(page, ("task", "episodes", "mean return"), rows, right=("episodes", "mean return"))


def _types(tool: dict[str, Any]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in tool["by_type"].items())
