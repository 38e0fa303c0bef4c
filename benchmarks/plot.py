"""``python -m benchmarks.plot RESULTS SVG``: draw the plot of docs/performance.md from the results of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mcpenv", "font.size": 9})
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from .page import HELD  # noqa: E402
from .results import Results  # noqa: E402
from .rows import CALLS, CPU, OURS, Row  # noqa: E402
from .steps import ASYNC, FLOOR, OPENENV  # noqa: E402

SIDES = {FLOOR: "#8c959f", OURS: "#0a5dab", OPENENV: "#b7791f"}
CLIENTS = (1, 32, 256)
SESSIONS = (10, 100, 1_000, 10_000)


def draw(results: Results, svg: Path) -> None:
    """Draw steps a second by clients, and the processor time of a step by sessions."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    speed(left, {row.load: row for row in results.rows["steps"] if row.path == f"/ws step, {ASYNC.name}"})
    growth(right, {row.load: row for row in results.rows["growth"] if row.path == HELD})
    figure.savefig(svg, metadata={"Date": None})


def speed(axes: Axes, rows: dict[str, Row]) -> None:
    """Draw a group of bars for each number of clients."""
    width = 0.8 / len(SIDES)
    for number, (side, color) in enumerate(SIDES.items()):
        values = [rows[_load(count, "client")].sides[side][CALLS] for count in CLIENTS]
        places = [place + (number - 1) * width for place in range(len(CLIENTS))]
        bars = axes.bar(places, values, width, label=side, color=color)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], fontsize=7)
    axes.set_yscale("log")
    axes.set_ylim(100, 300_000)
    axes.set_xticks(range(len(CLIENTS)), [_load(count, "client") for count in CLIENTS])
    axes.set_title("Scored steps a second over /ws", fontsize=10)
    axes.legend(loc="upper right", fontsize=8, ncols=len(SIDES), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def growth(axes: Axes, rows: dict[str, Row]) -> None:
    """Draw a line for each side over the number of sessions."""
    for side, color in SIDES.items():
        points = [
            (count, rows[_load(count, "session")].sides[side][CPU])
            for count in SESSIONS
            if side in rows[_load(count, "session")].sides
        ]
        axes.plot(*zip(*points, strict=True), marker="o", label=side, color=color)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(SESSIONS, [f"{count:,}" for count in SESSIONS])
    axes.set_xlabel("sessions that step at once")
    axes.set_ylabel("µs")
    axes.set_title("Server's processor time for a step", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _load(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


if __name__ == "__main__":
    draw(Results.read(Path(sys.argv[1])), Path(sys.argv[2]))
