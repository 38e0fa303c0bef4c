"""The command ``mcpenv trajectories rescore``: score recorded episodes again with another rubric."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.output import (
    Page,
    author_output,
    counted,
    note_lost,
    note_torn,
    number_of,
    print_json,
    printable,
    quiet_logs,
    report,
)
from mcpenv.errors import ConfigurationError
from mcpenv.failures import own_words
from mcpenv.rewards.rubrics import Rubric
from mcpenv.trajectories import RecordedEpisode, Recorder, ToolLists, read_episodes
from mcpenv.trajectories.episode import RESCORED
from mcpenv_client.errors import McpenvError
from mcpenv_client.types.records import Reward, Trajectory

from .rescoring import load_rubric
from .rescoring import rescore as rescore_trajectory
from .statistics import spread

FAILED = 1

_SHOWN = 5


def rescore(
    record: Path,
    /,
    *,
    rubric: str,
    out: Path,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Score recorded episodes again and write them, with their old rewards, to another record.

    Exit status 0: all were scored. 1: the rubric failed for some, which are not written. 2: nothing was read.

    Args:
        record: Folder that was given as --record, or one of its files.
        rubric: MODULE:NAME or FILE.py:NAME of a rubric, or of a class or function without arguments that makes one.
        out: Folder for the new record.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    folder = record if record.is_dir() else record.parent
    if out.resolve() == folder.resolve():
        raise ConfigurationError("--out is the record itself; name another folder")
    scored = _Rescoring(rubric, ToolLists(folder))
    with author_output():
        loaded = load_rubric(rubric)
        if any(out.glob("episodes-*")):
            raise ConfigurationError(f"{out} has a record already; name another folder")
        # One event loop for all episodes: an async rubric's resources, such as a judge's connections, are bound to it.
        with Recorder(out) as recorder, asyncio.Runner() as runner:
            for episode in counted(read_episodes(record, on_torn=note_torn, on_lost=note_lost), "rescored"):
                scored.take(episode, loaded, recorder, runner)
    if recorder.counts.lost:
        raise ConfigurationError(f"{number_of(recorder.counts.lost, 'episode')} could not be written to {out}")
    if not scored.count:
        raise ConfigurationError(f"{record}: there are no episodes")
    if as_json:
        print_json(scored.document())
    else:
        scored.show(Page(sys.stdout), out)
    return FAILED if scored.failures else 0


class _Rescoring:
    """The results of one run of the command."""

    def __init__(self, rubric: str, lists: ToolLists) -> None:
        self._rubric = rubric
        self._lists = lists
        self._old: list[float] = []
        self._new: list[float] = []
        self.count = 0
        self.failures: list[tuple[str, str]] = []

    def take(self, episode: RecordedEpisode, rubric: Rubric, recorder: Recorder, runner: asyncio.Runner) -> None:
        """Score an episode and write it; if the rubric fails, note the failure instead."""
        self.count += 1
        old = episode.trajectory
        try:
            new = runner.run(rescore_trajectory(old, rubric))
        except Exception as error:  # noqa: BLE001 - the rubric's boundary: user code may raise anything
            message = str(error) if isinstance(error, McpenvError) else own_words(error)
            self.failures.append((episode.id, "; ".join([message, *getattr(error, "__notes__", ())])))
            return
        tools = None if episode.tools is None else recorder.tools.keep(self._lists.read(episode.tools))
        extra = {**episode.extra, RESCORED: {"rubric": self._rubric, "before": _rewards(old)}}
        recorder.write(replace(episode, trajectory=new, tools=tools, extra=extra))
        for returns, trajectory in ((self._old, old), (self._new, new)):
            earned = trajectory.earned
            if earned is not None:
                returns.append(earned)

    def document(self) -> dict[str, Any]:
        """Return the results as plain JSON data."""
        return {
            "episodes": self.count,
            "failed": len(self.failures),
            "failures": [{"id": episode_id, "why": why} for episode_id, why in self.failures],
            "return_before": spread(self._old),
            "return_after": spread(self._new),
        }

    def show(self, page: Page, out: Path) -> None:
        """Print the results."""
        for episode_id, why in self.failures[:_SHOWN]:
            report(f"{printable(episode_id)}: {printable(why)}")
        if len(self.failures) > _SHOWN:
            report(f"and {len(self.failures) - _SHOWN} more, which are not written either")
        page.line((f"{self.count - len(self.failures)} of {self.count} episodes rescored to {out}", "bold"))
        for when, returns in (("before", self._old), ("after", self._new)):
            figures = spread(returns)
            summary = "none scored" if figures is None else f"mean {figures['mean']:g} of {len(returns)} scored"
            page.line(f"return {when}: {summary}", indent=2)


def _rewards(trajectory: Trajectory) -> dict[str, Any]:
    """Return the rewards of an episode as plain JSON data."""
    return {
        "steps": [_plain(step.reward) for step in trajectory.steps],
        "end_reward": _plain(trajectory.end_reward),
        "total_reward": trajectory.total_reward,
    }


def _plain(reward: Reward | None) -> dict[str, Any] | None:
    return None if reward is None else {"value": reward.value, "components": reward.components}
