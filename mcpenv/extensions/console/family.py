"""The family of an episode: the episodes that it continues, those that continue it, and so on, drawn as a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from mcpenv.extensions.exports.page.markup import el
from mcpenv.extensions.exports.page.overview import number_text

MAX_MEMBERS = 500
"""Maximum episodes of a tree that is drawn."""

MAX_DEPTH = 80
"""Maximum branches of branches that are drawn."""

_ROW = 28
"""The height of a row in pixels, as in style.css."""

_NAME = 12
"""Maximum characters of an id that are shown."""

Summary = Mapping[str, Any]
"""A row of the record, as `row_of`, with its ``place``."""


@dataclass(slots=True)
class _Member:
    """One episode of a family.

    Attributes:
        row: None if it is not in the record: only its branches name it.
        step: the steps in common with its parent; 0 at the root.
        above: the number of rows that are drawn from its parent's row to its own; 0 at the root.
        depth: the number of its ancestors.
    """

    name: str
    row: Summary | None
    step: int = 0
    above: int = 0
    depth: int = 0
    parent: _Member | None = None
    branches: list[_Member] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The number of its last step, or of the last one that is known."""
        return int(self.row["n_steps"]) if self.row is not None else max(each.step for each in self.branches)


class Families:
    """The families of a record.

    Args:
        rows: the summaries of all its episodes, the newest first.
    """

    def __init__(self, rows: Sequence[Summary]) -> None:
        self._rows: dict[str, Summary] = {}
        self._branches: defaultdict[str, list[Summary]] = defaultdict(list)
        for row in rows:
            self._rows.setdefault(row["id"], row)
            if row["parent"] is not None:
                self._branches[row["parent"]].append(row)

    def tree(self, name: str, base: str) -> Element | None:
        """Return the tree of an episode as a nested list, in which each episode has a bar along the steps.

        Args:
            name: its id.
            base: the address of the record's page, without ``#/``.

        Returns:
            None if the episode has no parent and no branch.
        """
        members = list(self._members(self._root(name)))
        if len(members) < 2:
            return None
        shown = _shown(members, self._rows.get(name))
        last = max(1, *(member.end for member in shown))
        scores = [row["return"] for member in shown if (row := member.row) is not None and row["return"] is not None]
        drawing = _Drawing(name, f"#/{base}", last, (min(scores), max(scores)) if scores else None)
        left_out = f"{len(shown)} of {len(members)} episodes are drawn."
        return el(
            "div",
            el("p", el("span", "0"), el("span", f"step {last}", class_="end"), class_="bar values muted"),
            el("ul", drawing.item(members[0], {id(member) for member in shown}), class_="plain"),
            el("p", left_out, class_="muted") if len(shown) < len(members) else None,
            class_="tree",
            tabindex="0",
            role="region",
            aria_label="Tree of branches",
        )

    def _root(self, name: str) -> str:
        seen: set[str] = set()
        while (row := self._rows.get(name)) is not None and row["parent"] is not None and name not in seen:
            seen.add(name)
            name = row["parent"]
        return name

    def _members(self, root: str) -> Iterator[_Member]:
        """Yield the members in the order of their rows. Later branches stand nearer to their parent: no lines cross."""
        pending = [_Member(root, self._rows.get(root))]
        seen: set[str] = set()
        while pending:
            member = pending.pop()
            seen.add(member.name)
            if member.parent is not None:
                member.parent.branches.append(member)
                member.depth = member.parent.depth + 1
            branches = [row for row in self._branches.get(member.name, ()) if row["id"] not in seen]
            branches.sort(key=lambda row: (row["parent_step"], row["started_at"] or 0.0))
            pending += [_Member(row["id"], row, row["parent_step"], parent=member) for row in branches]
            yield member


def _shown(members: Sequence[_Member], present: Summary | None) -> list[_Member]:
    """Return the members that are drawn, in order: the present one with its ancestors, and as many others as fit."""
    kept: set[int] = set()
    at = next((member for member in members if member.row is present and present is not None), None)
    while at is not None:
        if at.depth <= MAX_DEPTH:
            kept.add(id(at))
        at = at.parent
    room = MAX_MEMBERS - len(kept)
    shown: list[_Member] = []
    rows: dict[int, int] = {}
    for member in members:
        if member.depth > MAX_DEPTH or (member.parent is not None and id(member.parent) not in rows):
            continue
        if id(member) not in kept:
            if not room:
                continue
            room -= 1
        rows[id(member)] = len(rows)
        if member.parent is not None:
            member.above = rows[id(member)] - rows[id(member.parent)]
        shown.append(member)
    return shown


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One tree that is drawn.

    Attributes:
        present: the id of the episode whose page it is on.
        base: the address of the record's page.
        last: the number of the last step of the axis.
        scores: the least and the largest return; None if there is none.
    """

    present: str
    base: str
    last: int
    scores: tuple[float, float] | None

    def item(self, member: _Member, shown: set[int]) -> Element:
        """Return an episode with those of its branches that are shown."""
        branches = [self.item(each, shown) for each in member.branches if id(each) in shown]
        return el("li", self._row(member), el("ul", *branches, class_="plain") if branches else None)

    def _row(self, member: _Member) -> Element:
        row, here = member.row, member.name == self.present
        text = member.name if len(member.name) <= _NAME else f"{member.name[:_NAME]}…"
        name = el("span", text, title="Not in this record", class_="muted") if row is None else self._link(row, text)
        told = "" if row is None else f"{row['n_steps']} steps, {row['status'] or 'running'}"
        return el(
            "div",
            el("span", "↳ " if member.parent else None, name),
            self._lane(member),
            el("span", "" if row is None else number_text(row["return"]), class_="number"),
            el("span", told, class_="muted wide"),
            class_="branch here" if here else "branch",
            aria_current="true" if here else None,
        )

    def _link(self, row: Summary, *inside: Element | str, **attributes: str) -> Element:
        return el("a", *inside, href=f"{self.base}/{quote(row['place'], safe='')}", title=row["id"], **attributes)

    def _lane(self, member: _Member) -> Element:
        """Return the bar of an episode, and the line to the step at which it leaves its parent."""
        middle, row, parent = _ROW // 2, member.row, member.parent
        shapes = [el("path", d=f"M{member.step} {middle}H{member.end}", class_="bar", stroke=self._colour(row))]
        if row is not None:
            shapes = [self._link(row, shapes[0], tabindex="-1", aria_hidden="true")]
        if member.branches and (first := min(each.step for each in member.branches)) < member.step:
            shapes.insert(0, el("path", d=f"M{first} {middle}H{member.step}"))  # of the steps that it shares
        if parent is not None:
            shapes.insert(0, el("path", d=f"M{member.step} {middle - _ROW * member.above}V{middle}"))
            dot = el("path", d=f"M{member.step} {middle}h0", class_="dot")
            if parent.row is not None:
                told = f"Step {member.step} of {parent.name}, where it leaves"
                href = f"{self.base}/{quote(parent.row['place'], safe='')}?step={member.step}"
                dot = el("a", el("title", told), dot, href=href, aria_label=told)
            shapes.append(dot)
        return el("svg", *shapes, viewBox=f"0 0 {self.last} {_ROW}", preserveAspectRatio="none")

    def _colour(self, row: Summary | None) -> str:
        if row is None or row["return"] is None or self.scores is None:
            return "var(--muted)"
        least, most = self.scores
        if least == most:
            return "var(--accent)"
        return f"color-mix(in oklab, var(--good) {round(100 * (row['return'] - least) / (most - least))}%, var(--bad))"
