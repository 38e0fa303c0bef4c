"""The evidence of an episode's end: the parts of its reward, and the changes beside what was expected."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.trajectories.summary import components_of
from mcpenv_client.fingerprint import canonical
from mcpenv_client.types.checked import CheckedChange
from mcpenv_client.types.records import Trajectory

from .contents import line_of
from .markup import Child, el, facts, table

_MARKS = {"$any": "any value", "$removed": "removed"}
_ANY = {"$any": True}


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
    of = "" if trajectory.task is None else f" of {floor:g} to {full:g}"
    bars: list[tuple[str, Child]] = [
        (name, el("span", el("meter", value=f"{value:g}", aria_label=name, **bounds), f" {value:g}{of}"))
        for name, value in parts.items()
    ]
    wrong = sum(change.passed is False for change in evidence)
    shown: Element | None
    if evidence:
        shown = table("Evidence", ("Where", "Before", "Expected", "Actual", "Verdict"), map(_row, evidence))
    elif trajectory.changes:
        shown = _list(trajectory.changes)
    else:
        shown = None if trajectory.verified is None else _muted("Nothing in the world changed that is known.")
    return el(
        "section",
        el("h2", "Why this reward"),
        facts(bars) if bars else None,
        _list(trajectory.problems) if trajectory.problems else None,
        shown,
        _muted(f"{wrong} of {len(evidence)} places are wrong; they stand first.")
        if 0 < wrong < len(evidence)
        else None,
        class_="card",
        aria_label="Why this reward",
    )


def _row(change: CheckedChange) -> list[Child]:
    missing, removed = change.kind == "missing", change.kind == "removed"
    expected: list[Child] = [part for each in change.expected for part in (el("p", "or", class_="muted"), _value(each))]
    wanted = expected[1:] or [_muted("" if change.passed is None else "no change")]
    if change.passed is None:
        verdict = el("span", change.kind)
    elif change.passed:
        verdict = el("span", "as expected", class_="good")
    else:
        verdict = el(
            "strong", "missing" if missing else "another value" if change.expected else "not expected", class_="error"
        )
    right = change.expected[0] if change.expected and change.passed is False else _ANY
    return [
        el("code", change.where),
        "" if missing or change.kind == "added" else _value(change.before),
        el("div", *wanted),
        _muted("no such change") if missing else _muted("removed") if removed else _value(change.after, right),
        el("div", verdict, _muted("shortened") if change.cut else None),
    ]


def _value(value: Any, expected: Any = _ANY) -> Element:
    """Return a value; of an object each key, those marked that are not as expected."""
    if (mark := _mark_of(value)) is not None:
        return _muted(mark)
    if not isinstance(value, dict):
        return el("span", _text(value), class_="value error" if _differs(value, expected) else "value")
    right = expected if isinstance(expected, dict) and expected != _ANY else None
    pairs: list[Element] = []
    for name in dict.fromkeys([*value, *(right or ())]):
        wrong = right is not None and (name not in value or name not in right or _differs(value[name], right[name]))
        own = value.get(name)
        shown: Child = "not there" if name not in value else _value(own) if isinstance(own, dict) else _text(own)
        kind = "error" if wrong else None
        pairs += (el("dt", el("strong", name) if wrong else name, class_=kind), el("dd", shown, class_=kind))
    return el("dl", *pairs, class_="fields")


def _differs(value: Any, expected: Any) -> bool:
    if expected == _ANY:
        return False
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() != expected.keys() or any(_differs(value[name], expected[name]) for name in value)
    return canonical({"": value}) != canonical({"": expected})


def _mark_of(value: Any) -> str | None:
    return next((words for mark, words in _MARKS.items() if value == {mark: True}), None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else line_of(value)


def _muted(text: str) -> Element:
    return el("p", text, class_="muted")


def _list(sentences: list[str]) -> Element:
    return el("ul", *(el("li", sentence) for sentence in sentences))
