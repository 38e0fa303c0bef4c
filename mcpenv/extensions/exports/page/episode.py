"""One episode on a page."""

from __future__ import annotations

import time
from xml.etree.ElementTree import Element

from mcpenv.extensions.records.texts import reward_text, status_text
from mcpenv.extensions.records.transcript import Entry, transcript_of
from mcpenv.trajectories.episode import CONTEXT, NOT_RECORDED, RecordedEpisode
from mcpenv.trajectories.summary import components_of, fault_of, named_task_of

from .contents import Contents, json_of, line_of
from .evidence import evidence_element
from .markup import Child, el, facts
from .step import Steps
from .turns import message_element


def episode_element(episode: RecordedEpisode, contents: Contents, fragment: str) -> Element:
    """Return an episode with all its steps.

    Args:
        fragment: its id in the page.
    """
    trajectory, steps = episode.trajectory, Steps(episode, contents, fragment)
    by_number = {step.call.step: step for step in trajectory.steps}
    reset = trajectory.observation

    def element(entry: Entry) -> Element:
        if "step" in entry:
            return steps.element(by_number[entry["step"]])
        return message_element(entry, episode.model_turns or (), contents)

    count = trajectory.dropped + len(trajectory.steps)
    return el(
        "article",
        el("h2", "Episode ", el("code", episode.id), id=fragment),
        el("section", facts_element(episode), class_="card", aria_label="Summary"),
        evidence_element(trajectory),
        _details("Reset", *contents.value(reset)) if reset else None,
        *(_details(name.replace("_", " "), json_of(value)) for name, value in episode.extra.items() if name in _EXTRA),
        el("p", f"{count} step{'' if count == 1 else 's'}"),
        _dropped(trajectory.dropped),
        *map(element, transcript_of(episode)),
    )


_EXTRA = frozenset({NOT_RECORDED, CONTEXT})
"""Further data that readers need. The observations are shown at their steps."""


def facts_element(episode: RecordedEpisode) -> Element:
    """Return the facts of an episode."""
    trajectory, environment = episode.trajectory, episode.environment
    earned, fork, parts = trajectory.earned, trajectory.forked_from, components_of(trajectory)
    reason = trajectory.reason if trajectory.reason != episode.ending else None
    started, ended = trajectory.started_at, trajectory.ended_at
    pairs: list[tuple[str, Child]] = [
        ("Environment", f"{environment.name} {environment.version or ''}".strip()),
        ("Task", named_task_of(trajectory)),
        ("Labels", None if trajectory.task is None else trajectory.task.labels),
        ("Seed", None if trajectory.seed is None else str(trajectory.seed)),
        ("Options", line_of(trajectory.options) if trajectory.options else None),
        ("Agent", None if episode.agent is None else line_of(episode.agent)),
        ("Return", "not scored" if earned is None else f"{earned:g}"),
        ("Parts", ", ".join(f"{name} {value:g}" for name, value in parts.items())),
        ("Reward of the end", None if trajectory.end_reward is None else reward_text(trajectory.end_reward)),
        ("Verified", None if trajectory.verified is None else reward_text(trajectory.verified)),
        ("Scoring failed", fault_of(trajectory)),
        ("Status", None if trajectory.status is None else status_text(trajectory.status)),
        ("Ending", f"{episode.ending}: {reason}" if reason else episode.ending),
        ("Started", _moment(started) if started else None),
        ("Took", f"{ended - started:.2f} s" if ended and started else None),
        ("Continues", None if fork is None else f"{fork.episode_id} after step {fork.step}"),
    ]
    return facts(pairs)


def _moment(seconds: float) -> Element:
    at = time.gmtime(seconds)
    return el("time", time.strftime("%Y-%m-%d %H:%M:%S UTC", at), datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", at))


def _dropped(count: int) -> Element | None:
    return el("p", f"The first {count} steps are not in the record.", class_="warn") if count else None


def _details(title: str, *body: Element) -> Element:
    return el("details", el("summary", title), *body, class_="card")
