"""Measure scripted agents by level: with mistakes at several rates, dishonest, obedient to attackers, and idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mcpenv import MCPEnvironment, OracleCall, Task

from .composer import LEVELS
from .demonstration import demonstration

RATES = (0.0, 0.05, 0.1, 0.2, 0.4)
COLOURS = ("#1b7837", "#5aae61", "#f1a340", "#d6604d", "#762a83")


def measure(
    env: MCPEnvironment, looks: tuple[str, ...], tasks: int, rates: Sequence[float] = RATES
) -> dict[int, list[float]]:
    """Return the mean scores by level, one for each rate.

    Args:
        env: has a split ``train`` whose task ``n`` has the level ``1 + n % LEVELS``.
        looks: how the names of tools begin that change nothing.
        tasks: the number of tasks of each level, which are the first ones.
        rates: the probabilities of a mistake in a call.
    """
    return {
        level: [
            sum(_score(env, task, demonstration(task, rate, n, looks)) for n, task in enumerate(chosen)) / tasks
            for rate in rates
        ]
        for level, chosen in _by_level(env, tasks).items()
    }


def agents_table(env: MCPEnvironment, tasks: int) -> str:
    """Return the mean scores of agents that do what they should not, by level, as a table of Markdown.

    An agent that breaks a rule minds none, where a rule forbids the obvious. An obedient one also does what a text of
    an attacker says, where there is one. The number of such tasks is in parentheses.

    Args:
        env, tasks: as for `measure`.
    """
    rows = ["| level | honest | idle | breaks a rule | obeys an attacker |\n|---|---|---|---|---|"]
    for level, chosen in _by_level(env, tasks).items():
        honest = [_score(env, task, _calls(task.oracle)) for task in chosen]
        idle = [_score(env, task, ()) for task in chosen]
        breach = [_score(env, each, _calls(each.metadata["breach"])) for each in chosen if "breach" in each.metadata]
        obeyed = [
            _score(env, each, _calls([*(each.oracle or ()), *each.metadata["attack"]]))
            for each in chosen
            if "attack" in each.metadata
        ]
        cells = [f"{sum(each) / len(each):.2f} ({len(each)})" if each else "none" for each in (breach, obeyed)]
        rows.append(f"| {level} | {sum(honest) / tasks:.2f} | {sum(idle) / tasks:.2f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _by_level(env: MCPEnvironment, tasks: int) -> dict[int, list[Task]]:
    return {
        level: [env.get_task("train", level - 1 + LEVELS * n) for n in range(tasks)] for level in range(1, LEVELS + 1)
    }


def _score(env: MCPEnvironment, task: Task, calls: Iterable[tuple[str, dict[str, Any]]]) -> float:
    env.reset(task=task)
    for name, arguments in calls:
        env.call_tool(name, arguments)
    return float(env.end().info["return"])


def _calls(made: Iterable[Any] | None) -> Iterable[tuple[str, dict[str, Any]]]:
    every = [OracleCall.model_validate(each) for each in made or ()]
    return [(call.tool_name, call.arguments) for call in every]


def table(scores: dict[int, list[float]]) -> str:
    """Return the scores as a table of Markdown."""
    head = "| level | " + " | ".join(f"{rate:.0%} mistakes" for rate in RATES) + " |"
    rows = [f"| {level} | " + " | ".join(f"{score:.2f}" for score in row) + " |" for level, row in scores.items()]
    return "\n".join([head, "|---" * (len(RATES) + 1) + "|", *rows])


def picture(scores: dict[int, list[float]]) -> str:
    """Return the scores as a picture in SVG, with a line for each level."""
    width, height, edge = 480, 280, 45

    def place(rate: float, score: float) -> str:
        x = edge + rate / RATES[-1] * (width - 2 * edge)
        return f"{x:.1f},{height - edge - score * (height - 2 * edge):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<polyline points="{place(0, 1)} {place(0, 0)} {place(RATES[-1], 0)}" fill="none" stroke="#333"/>',
        f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">probability of a mistake in a call</text>',
        f'<text x="8" y="{edge - 14}">solved</text>',
    ]
    for rate in RATES:
        x, y = place(rate, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 15}" text-anchor="middle">{rate:.2f}</text>')
    for score in (0, 0.5, 1):
        x, y = place(0, score).split(",")
        parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{score:.1f}</text>')
    for (level, row), colour in zip(scores.items(), COLOURS, strict=True):
        points = " ".join(place(rate, score) for rate, score in zip(RATES, row, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - edge - 60}" y="{edge + 14 * level}" fill="{colour}">level {level}</text>')
    return "\n".join([*parts, "</svg>\n"])
