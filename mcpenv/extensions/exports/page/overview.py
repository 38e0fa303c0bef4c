"""The overview of a page of many episodes: figures, a table of tasks, and a link to each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from .markup import Child, el, facts, table


@dataclass(frozen=True)
class Placed:
    """An episode in a page: its summary, as `summary_of`, and the fragment that leads to it."""

    summary: dict[str, Any]
    fragment: str

    def link(self, text: str) -> Element:
        """Return a link to it."""
        return el("a", text, href=f"#{self.fragment}")


def overview_of(placed: Sequence[Placed], figures: dict[str, Any]) -> tuple[str, list[Element]]:
    """Return the title and the overview of a record's episodes."""
    names = {each.summary["environment"] for each in placed}
    title = f"Episodes of {', '.join(sorted(names))}" if names else "No episode"
    found = [
        el("h1", title),
        el(
            "section",
            facts(
                [
                    ("Episodes", str(figures["episodes"])),
                    ("Return", _spread(figures["return"])),
                    ("Steps", _spread(figures["steps"])),
                    ("Statuses", counts_text(figures["statuses"])),
                    ("Endings", counts_text(figures["endings"])),
                ]
            ),
            class_="card",
            aria_label="Figures",
        ),
    ]
    if figures["tasks"]:
        rows = [
            (f"{task['split']}/{task['id']}", str(task["episodes"]), number_text(task["mean_return"]))
            for task in figures["tasks"]
        ]
        found.append(_section("Tasks", table("Tasks", ("Task", "Episodes", "Mean return"), rows, (1, 2))))
    if placed:
        found.append(_section("Episodes", table("Episodes", _HEADINGS, map(_row, placed), (2, 3))))
    return title, found


_HEADINGS = ("Episode", "Task", "Steps", "Return", "Status", "Ending")


def _row(placed: Placed) -> tuple[Child, ...]:
    seen = placed.summary
    task = "" if seen["task_id"] is None else f"{seen['split']}/{seen['task_id']}"
    earned = number_text(seen["return"])
    return (placed.link(seen["id"]), task, str(seen["n_steps"]), earned, seen["status"] or "unfinished", seen["ending"])


def number_text(value: float | None) -> str:
    """Return a figure; a dash without one."""
    return "-" if value is None else f"{value:.4g}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by name."""
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())


def _spread(spread: Mapping[str, float] | None) -> str | None:
    if spread is None:
        return None
    return f"mean {spread['mean']:.4g}, median {spread['p50']:.4g}, {spread['min']:.4g} to {spread['max']:.4g}"


def _section(title: str, body: Element) -> Element:
    return el("section", el("h2", title), body)
