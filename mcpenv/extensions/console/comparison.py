"""The comparison of two recorded episodes for the console: their aligned steps, and what differs by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpenv.extensions.exports.page.changes import ABSENT, changes
from mcpenv.extensions.records.alignment import aligned
from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.fingerprint import Facts, facts_of_end, facts_of_reset, facts_of_step


def compared(one: RecordedEpisode, other: RecordedEpisode) -> dict[str, Any]:
    """Return how two episodes differ.

    Returns:
        ``pairs``: the aligned steps, each with ``at`` (the index in each episode, None: it has no such step),
        ``differs``, ``text`` (the numbers of the steps, and their difference in words) and ``found``; ``reset`` and
        ``end``. These three are lists of ``path``, ``before`` and ``after``, where a missing side is not in the record,
        or None if nothing differs. ``first``: the index of the first pair that differs; None without one.
        ``summary``: a sentence.
    """
    sides = (one, other)
    pairs = aligned(*sides)
    reset = _found(*(facts_of_reset(each.trajectory) for each in sides))
    end = _found(*(facts_of_end(each.trajectory) for each in sides))
    first = next((at for at, pair in enumerate(pairs) if pair[2] is not None), None)
    told = []
    for at, (*places, verdict) in enumerate(pairs):
        found = None
        if verdict is not None and None not in places:
            found = _found(*(_facts_of(side, place or 0) for side, place in zip(sides, places, strict=True)))
        numbers = " and ".join(dict.fromkeys(map(str, _numbers(sides, places))))
        note = ". This is the first difference." if at == first and reset is None else ""
        text = f"Step {numbers}: {verdict or 'equal'}{note}"
        told.append({"at": places, "differs": verdict is not None, "text": text, "found": found})
    if reset is not None:
        summary = "The episodes differ from the reset on."
    elif first is not None:
        summary = f"The first difference is at step {_numbers(sides, pairs[first][:2])[0]}."
    elif end is not None:
        summary = "All steps are equal. The ends differ."
    else:
        summary = "The episodes are equal: reset, all steps, and end."
    return {"pairs": told, "reset": reset, "end": end, "first": first, "summary": summary}


def _numbers(sides: Sequence[RecordedEpisode], places: Sequence[int | None]) -> list[int]:
    return [place + 1 + side.trajectory.dropped for side, place in zip(sides, places, strict=True) if place is not None]


def _facts_of(side: RecordedEpisode, place: int) -> Facts:
    step = side.trajectory.steps[place]
    observation = side.extra.get(OBSERVATIONS, {}).get(str(step.call.step))
    return {"name": step.call.name, "arguments": step.call.arguments, **facts_of_step(step, observation)}


def _found(before: Facts, after: Facts) -> list[dict[str, Any]] | None:
    found = [
        {"path": each.path, **{name: side for name, side in sides.items() if side is not ABSENT}}
        for each in changes(before, after)
        if (sides := {"before": each.before, "after": each.after})
    ]
    return found or None
