"""Measure the ladder: the scores of the scripted agent by level and rate of mistakes, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence

from mcpenv import MCPEnvironment

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
    scores: dict[int, list[float]] = {}
    for level in range(1, LEVELS + 1):
        chosen = [env.get_task("train", level - 1 + LEVELS * n) for n in range(tasks)]
        scores[level] = []
        for rate in rates:
            solved = 0.0
            for n, task in enumerate(chosen):
                env.reset(task=task)
                for name, arguments in demonstration(task, rate, n, looks):
                    env.call_tool(name, arguments)
                solved += env.end().info["return"]
            scores[level].append(solved / tasks)
    return scores


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
