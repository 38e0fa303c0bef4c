"""The evidence of an episode's end: the parts of its reward, and the changes beside what was expected."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.trajectories.summary import components_of
from mcpenv_client.types.checked import CheckedChange
from mcpenv_client.types.records import Trajectory

from .contents import line_of
from .markup import Child, el, facts, table

_MARKS = {"$any": "any value", "$removed": "removed"}


def evidence_element(trajectory: Trajectory) -> Element | None:
    """Return the card; None if there is no evidence."""
    parts, evidence = components_of(trajectory), trajectory.evidence
    if trajectory.verified is None and not trajectory.problems and not parts:
        return None
    floor, full = (0.0, 1.0) if trajectory.task is None else trajectory.task.reward_range
    bounds = {
        "min": f"{min(floor, *parts.values()):g}" if parts else "0",
        "max": f"{max(full, *parts.values()):g}" if parts else "1",
    }
    bars: list[tuple[str, Child]] = [
        (
            name,
            el(
                "span",
                el("meter", value=f"{value:g}", aria_label=name, **bounds),
                f" {value:g} of {floor:g} to {full:g}",
            ),
        )
        for name, value in parts.items()
    ]
    shown: Element | None
    if evidence:
        shown = table("Evidence", ("Where", "Before", "Expected", "Actual", ""), map(_row, evidence))
    elif trajectory.changes:
        shown = _list(trajectory.changes)
    else:
        shown = None if trajectory.verified is None else el("p", "Nothing in the world changed that is known.")
    return el(
        "section",
        el("h2", "Why this reward"),
        facts(bars) if bars else None,
        _list(trajectory.problems) if trajectory.problems else None,
        shown,
        class_="card",
        aria_label="Why this reward",
    )


def _row(change: CheckedChange) -> list[Child]:
    missing, removed = change.kind == "missing", change.kind == "removed"
    wanted = " or ".join(map(_value, change.expected)) or ("" if change.passed is None else "no change")
    if change.passed is None:
        verdict = el("span", change.kind)
    elif change.passed:
        verdict = el("span", "as expected")
    else:
        verdict = el(
            "strong", "missing" if missing else "another value" if change.expected else "not expected", class_="error"
        )
    return [
        el("code", change.where),
        "" if missing or change.kind == "added" else _value(change.before),
        wanted,
        "no such change" if missing else "removed" if removed else _value(change.after),
        el("span", verdict, ", shortened" if change.cut else None),
    ]


def _value(value: Any) -> str:
    for mark, words in _MARKS.items():
        if value == {mark: True}:
            return words
    return value if isinstance(value, str) else line_of(value)


def _list(sentences: list[str]) -> Element:
    return el("ul", *(el("li", sentence) for sentence in sentences))
