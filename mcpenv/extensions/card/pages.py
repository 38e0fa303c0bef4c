"""The pages of a card: the same blocks as Markdown and as HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from mcpenv.extensions.exports.page.markup import el, facts, page_of, table

from .measure import levels_of

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Heading:
    """A heading."""

    text: str
    depth: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; a warning if it is one."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Table:
    """A table, of which the columns from ``numbers`` on are numbers; without headings it has names and values."""

    label: str
    headings: Sequence[str]
    rows: Rows
    numbers: int = 1000


Block = Heading | Paragraph | Table


def blocks_of(card: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the blocks of a card."""
    environment, findings = card["environment"], card["findings"]
    yield Heading(f"Card of {environment['name']} {environment['version'] or ''}".strip(), 1)
    yield Paragraph(environment["description"])
    for text in findings:
        yield Paragraph(f"Finding: {text}", warning=True)
    yield Heading("Tasks")
    yield from _tasks(card["tasks"])
    yield Heading(f"Soundness: {_verdict(card['soundness'])}")
    yield Table("Soundness", ("part", "verdict", ""), [*map(_part, card["soundness"]["parts"])])
    others = [
        (part["part"], each["verdict"], f"{each['where']}: {each['reason']}".removeprefix(": "))
        for part in card["soundness"]["parts"]
        for each in part["findings"]
    ]
    if others:
        yield Table("Findings", ("part", "verdict", "what"), others)
    yield Heading("Difficulty")
    yield from _difficulty(card)
    yield Heading("Learnability")
    yield from _learnability(card["learnability"])
    yield Heading("Contamination")
    yield from _contamination(card["contamination"])
    yield Heading("Determinism")
    yield from _determinism(card["determinism"])
    yield Heading("Cost of an episode")
    yield from _cost(card["cost"])
    yield Heading("This card")
    yield Table(
        "This card",
        (),
        [
            ("fingerprint", card["fingerprint"] or "none: the environment has no folder"),
            ("format", str(card["format"])),
            ("hash", card["hash"]),
            ("mcpenv", card["mcpenv"]),
        ],
    )


def markdown(card: Mapping[str, Any], depth: int = 0) -> str:
    """Return a card as Markdown.

    Args:
        depth: the number of levels by which its headings are lower.
    """
    return "\n\n".join(_markdown(block, depth) for block in blocks_of(card)) + "\n"


def html(card: Mapping[str, Any]) -> str:
    """Return a card as a page of HTML, which needs no network."""
    return page_of(f"Card of {card['environment']['name']}", map(_element, blocks_of(card)))


# -- the parts


def _not_measured(part: Mapping[str, Any]) -> Iterator[Block]:
    if "not_measured" in part:
        yield Paragraph(f"Not measured: {part['not_measured']}.")


def _tasks(tasks: Mapping[str, Any]) -> Iterator[Block]:
    yield from _not_measured(tasks)
    if "not_measured" in tasks:
        return
    yield Table(
        "Tasks",
        (),
        [
            ("tasks", f"{tasks['number']:,}"),
            ("licence", tasks["licence"] or "not stated by the task set"),
            ("source", f"{tasks['source']}, version {tasks['version']}"),
        ],
    )
    rows = [
        (
            each["split"],
            f"{each['tasks']:,}",
            _by_level(each["levels"]),
            str(each["families"] or "-"),
            f"{each['with_solution'] / each['looked_at']:.0%}",
            f"{each['with_canary'] / each['looked_at']:.0%}",
            ", ".join(each["tags"]) or "-",
        )
        for each in tasks["splits"]
    ]
    yield Table("Splits", ("split", "tasks", "levels", "families", "with solution", "with canary", "tags"), rows)
    if any(each["looked_at"] < each["tasks"] for each in tasks["splits"]):
        most = max(each["looked_at"] for each in tasks["splits"])
        yield Paragraph(f"Levels, families, tags, solutions and canaries are those of the first {most} of each split.")


def _by_level(levels: Mapping[str, int]) -> str:
    return f"{min(levels, key=int)} to {max(levels, key=int)}" if levels else "-"


def _verdict(soundness: Mapping[str, Any]) -> str:
    if any(part["verdict"] == "failed" for part in soundness["parts"]):
        return "unsound"
    if not soundness["sound"]:
        return "not known to be sound"
    played, number = soundness["tasks_played"], soundness["tasks"]
    return "sound" if played == number else f"sound in the {played:,} of {number:,} tasks that were played"


def _part(part: Mapping[str, Any]) -> tuple[str, ...]:
    return part["part"], part["verdict"] + (", in part" if part["in_part"] else ""), part["summary"]


def _difficulty(card: Mapping[str, Any]) -> Iterator[Block]:
    difficulty, levels = card["difficulty"], levels_of(card)
    yield from _not_measured(difficulty)
    if "not_measured" in difficulty:
        return
    yield Paragraph(
        f"The share of {difficulty['tasks']} tasks of {difficulty['split']} that agents of known strength solve, with "
        "its 95 % interval. The scripted agent knows the solution and makes mistakes with a probability in each call."
    )
    rows = [
        (
            name,
            _share(figures["solved"]),
            "-" if figures["interval"] is None else "{:.2f} to {:.2f}".format(*figures["interval"]),
            _share(figures["mean_score"]),
            *(_share(figures["by_level"].get(level)) for level in levels),
        )
        for name, figures in difficulty["agents"].items()
    ]
    headings = ("agent", "solved", "interval", "mean score", *(f"level {level}" for level in levels))
    yield Table("Difficulty", headings, rows, 1)
    if len(levels) > 1:
        yield Paragraph(
            f"A rate by level is of some {round(difficulty['tasks'] / len(levels))} tasks only, so that small "
            "differences between levels are noise."
        )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _learnability(part: Mapping[str, Any]) -> Iterator[Block]:
    yield from _not_measured(part)
    if "not_measured" in part:
        return
    level = "" if part["level"] is None else f" of level {part['level']}"
    which = f"{part['unseen_tasks']} others of the same families" if part["unseen_tasks"] else "the same tasks"
    yield Paragraph(
        f"A tiny policy on a CPU: solved {_share(part['before'])} before and {_share(part['after'])} after "
        f"{part['episodes']} episodes of {part['tasks']} tasks{level}, measured on {which}; {part['words']} words. "
        f"Mean score in each fifth of the episodes: {', '.join(map(_share, part['curve']))}."
    )
    yield Paragraph(part["method"])


def _contamination(part: Mapping[str, Any]) -> Iterator[Block]:
    yield from _not_measured(part)
    if "not_measured" in part:
        return
    marked = [split for split, share in part["canary"].items() if share == 1]
    yield Table(
        "Contamination",
        (),
        [
            ("canary in every task", ", ".join(marked) or "in no split"),
            ("variants", ", ".join(part["variants"]) or "none"),
            ("tasks in two splits", str(sum(each["tasks"] for each in part["shared"]))),
        ],
    )
    yield from _beside(part)
    if not part["by_heart"]:
        yield Paragraph("Not measured: an agent that plays by heart, because there is one split, or no solution.")
        return
    yield Paragraph(
        "An agent that knows the solutions of one split by heart, and replays that of the original on a variant, or "
        "that of the most similar prompt on another split:"
    )
    rows = [
        (
            each["played"],
            each["known"],
            "the original" if each["variants"] else "the prompt",
            str(each["tasks"]),
            _share(each["solved"]),
        )
        for each in part["by_heart"]
    ]
    yield Table("By heart", ("played", "known by heart", "found by", "tasks", "solved"), rows, 3)


def _beside(part: Mapping[str, Any]) -> Iterator[Block]:
    if not part.get("beside"):
        return
    yield Paragraph(
        "An agent that has learned tasks by heart scores less on their variants, which have other names and figures:"
    )
    rows = [
        (
            each["agent"],
            each["original"],
            str(each["of_originals"]["tasks"]),
            _with_interval(each["of_originals"]),
            _with_interval(each["of_variants"]),
        )
        for each in part["beside"]
    ]
    yield Table("Variants", ("agent", "split", "tasks", "originals solved", "variants solved"), rows, 2)


def _with_interval(figures: Mapping[str, Any]) -> str:
    low_high = figures["interval"]
    return _share(figures["solved"]) + ("" if low_high is None else " ({:.2f} to {:.2f})".format(*low_high))


def _determinism(part: Mapping[str, Any]) -> Iterator[Block]:
    yield from _not_measured(part)
    if "not_measured" in part:
        return
    differ = len(part["differing"])
    yield Table(
        "Determinism",
        (),
        [
            ("tasks played twice, on two instances", str(part["tasks"])),
            ("with equal states, observations and rewards", str(part["tasks"] - differ)),
            ("hash of all of them", part["digest"]),
        ],
    )


def _cost(part: Mapping[str, Any]) -> Iterator[Block]:
    yield from _not_measured(part)
    if "not_measured" in part:
        return
    measured = {
        "start of an instance": (part["start_ms"], "ms"),
        "reset": (part["reset_ms"], "ms"),
        "a step (median)": (part["step_ms"], "ms"),
        "CPU of an episode of the solution": (part["episode_cpu_ms"], "ms"),
        "steps of that episode": (part["episode_steps"], ""),
        f"memory of a session, of {part['sessions']} at once": (part["session_kib"], "KiB"),
    }
    rows = [(name, f"{value} {unit}".strip()) for name, (value, unit) in measured.items() if value is not None]
    yield Table("Cost", (), [*rows, ("machine", part["machine"])])


# -- the two forms


def _element(block: Block) -> Element:
    match block:
        case Heading(text, depth):
            return el(f"h{depth}", text)
        case Paragraph(text, warning):
            return el("p", text, class_="warn" if warning else None)
        case Table(label, headings, rows, numbers):
            if headings:
                return table(label, headings, rows, range(numbers, len(headings)))
            return el("div", facts((name, value) for name, value in rows), class_="card")


def _markdown(block: Block, depth: int) -> str:
    match block:
        case Heading(text, own):
            return f"{'#' * (own + depth)} {_escaped(text)}"
        case Paragraph(text, warning):
            return f"**{_escaped(text)}**" if warning else _escaped(text)
        case Table(_, headings, rows, numbers):
            head = [*headings] or ["", ""]
            rule = ["---:" if at >= numbers else "---" for at in range(len(head))]
            lines = [head, *([_escaped(cell) for cell in row] for row in rows)]
            shown = [f"| {' | '.join(line)} |" for line in lines]
            return "\n".join([shown[0], f"|{'|'.join(rule)}|", *shown[1:]])


def _escaped(text: str) -> str:
    """Return a text on one line without Markdown in it."""
    return re.sub(r"([\\`*\[\]<>|]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))


def as_json(card: Mapping[str, Any]) -> str:
    """Return a card as JSON."""
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"
