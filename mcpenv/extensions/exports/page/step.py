"""One step on a page, and the earlier step that it is compared with."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.records.texts import reward_text, status_text
from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.formats.images import without_data
from mcpenv_client.types.records import Reward, StepRecord
from mcpenv_client.types.status import StatusCode

from .changes import ABSENT, Change, changes
from .contents import Contents, json_of, line_of
from .markup import Child, el, facts, table

MAX_CHANGES = 200
"""Maximum rows of a table of changes."""

_SHORT, _LONG = 100, 2000
_OBSERVATION = "observation"

Value = tuple[int, Any]
"""The number of a step, and its report of the world."""


class Steps:
    """The steps of an episode as elements. Request them in order.

    A record has no states. So a step is compared with the last step of the same call, or for one of the environment's
    own actions, with the last observation.
    """

    def __init__(self, episode: RecordedEpisode, contents: Contents, fragment: str) -> None:
        self._contents = contents
        self._fragment = fragment
        self._observations = episode.extra.get(OBSERVATIONS, {})
        reset = episode.trajectory.observation
        self._last: dict[str, Value] = {} if reset is None else {_OBSERVATION: (0, reset)}

    def element(self, step: StepRecord) -> Element:
        """Return a step."""
        own = self._observations.get(str(step.call.step))
        result = step.outcome.result
        value = own if own is not None else None if result is None else result.structured_content
        asked = _OBSERVATION if own is not None else f"{step.call.name} {line_of(step.call.arguments)}"
        earlier = self._last.get(asked)
        if value is not None:
            self._last[asked] = (step.call.step, value)
        return el(
            "section",
            _head(step),
            *_given(step),
            *self._outcome(step, own),
            None if earlier is None or value is None else _changes(earlier, value),
            *_beside(step),
            class_="card",
            id=f"{self._fragment}-step-{step.call.step}",
        )

    def _outcome(self, step: StepRecord, own: Any) -> list[Child]:
        result, error = step.outcome.result, step.outcome.error
        found: list[Child] = []
        if error is not None:
            found += [_error(f"{error.error_type.value}:"), self._contents.block(_text(error.message))]
        if step.fault is not None:
            found.append(_error(f"The environment failed: {step.fault}"))
        if result is not None:
            if result.is_error:
                found.append(_error("The tool marked its result as an error."))
            found += [self._contents.block(block) for block in result.content]
            if not result.content:
                found.append(el("p", "No content.", class_="muted"))
            said = line_of(result.structured_content)
            if result.structured_content is not None and not _says(result.text, result.structured_content):
                summary = f"Structured content ({len(said):,} characters)"
                found.append(el("details", el("summary", summary), json_of(result.structured_content)))
        if own is not None:
            found += [el("p", "Observation:", class_="muted"), *self._contents.value(own)]
        return found


def _head(step: StepRecord) -> Element:
    given = line_of(step.call.arguments)
    ended = "terminated" if step.terminated else "truncated"
    reason = f": {step.reason}" if step.reason else ""
    return el(
        "div",
        el("h3", f"{step.call.step}. {step.call.name}"),
        el("code", given, class_="muted") if step.call.arguments and len(given) <= _SHORT else None,
        None if step.reward is None else _rewarded(step.reward),
        None if step.status.code is StatusCode.COMPLETED else el("span", status_text(step.status), class_="warn"),
        el("span", ended + reason, class_="warn") if step.done else None,
        el("span", f"{step.outcome.duration_s * 1000:.1f} ms", class_="muted end"),
        class_="head",
    )


def _rewarded(reward: Reward) -> Element:
    return el("span", f"reward {reward_text(reward)}", class_="error" if reward.value < 0 else "good")


def _given(step: StepRecord) -> list[Element]:
    given = step.call.arguments
    return [json_of(given)] if len(line_of(given)) > _SHORT else []


def _beside(step: StepRecord) -> list[Element]:
    """Return the log of a step and its caller."""
    found = []
    if step.logs:
        lines = [
            f"{entry.level}: {entry.message or ''}"
            + ("" if entry.progress is None else f" {entry.progress:g} of {entry.total or 'unknown'}")
            for entry in step.logs
        ]
        items = el("ul", *(el("li", line) for line in lines))
        found.append(el("details", el("summary", f"Log ({len(lines)})"), items))
    if step.call.principal is not None:
        found.append(facts([("Caller", step.call.principal)]))
    return found


def _changes(earlier: Value, value: Any) -> Element:
    number, before = earlier
    since = f"step {number}" if number else "the reset"
    found = list(changes(without_data(before), without_data(value)))
    if not found:
        return el("p", f"Unchanged since {since}.", class_="muted")
    shown = table("Changes", ("Path", "Before", "After"), map(_change, islice(found, MAX_CHANGES)))
    more = len(found) - MAX_CHANGES
    return el(
        "details",
        el("summary", f"Changed since {since}: {len(found)}"),
        shown,
        el("p", f"{more} more changes are left out.", class_="warn") if more > 0 else None,
        open="",
    )


def _change(change: Change) -> tuple[str, Child, Child]:
    sides = ("not there" if side is ABSENT else line_of(side) for side in (change.before, change.after))
    before, after = (side if len(side) <= _LONG else f"{side[:_LONG]}…" for side in sides)
    return (change.path or "(all)", before, after)


def _error(text: str) -> Element:
    return el("p", text, class_="error")


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _says(text: str, value: Any) -> bool:
    """Return True if a text is the JSON of a value, or of an object that wraps the value."""
    plain = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    return text in (line_of(value), line_of(plain), plain) or _parsed(text) in (value, plain)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ABSENT  # it is no JSON
