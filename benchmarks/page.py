"""The tables of ``docs/performance.md``, which a run writes between markers: the answers that users ask for."""

from __future__ import annotations

import re
from pathlib import Path

from . import budgets
from .growth import MANY
from .results import Results
from .rows import CALLS, CPU, OURS, P50, Row
from .tables import markdown, number_of

_MARKED = re.compile(r"(<!-- figures: (?P<name>[a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SPEED = (
    ("steps", "/ws step, async tool", "1 client"),
    ("steps", "/ws step, async tool", "32 clients"),
    ("steps", "/ws step, sync tool, in a thread", "32 clients"),
    ("control", "/ws connect + reset", "32 clients"),
    ("mcp", "/mcp 2026-07-28 tools/call, async tool, 1 tool", "32 clients"),
    ("mcp", "/mcp 2025-11-25 tools/call, async tool, 1 tool", "32 clients"),
    ("inside", "in-process step, async tool", "1 at a time"),
    ("inside", "a client's step over /ws, async", "1 client"),
)
"""The rows that say how fast it is: benchmark, path, load."""


def write(page: Path, results: Results) -> None:
    """Put the figures of a run on the page, at the markers of what it has; what it has not is left as it is."""
    found = sections(results)

    def put(marker: re.Match[str]) -> str:
        name = marker["name"]
        return f"{marker[1]}\n{found[name]}\n\n{marker[3]}" if name in found else marker[0]

    page.write_text(_MARKED.sub(put, page.read_text(encoding="utf-8")), encoding="utf-8")


def names_on(page: Path) -> list[str]:
    """Return the names in the markers of a page."""
    return [marker["name"] for marker in _MARKED.finditer(page.read_text(encoding="utf-8"))]


def sections(results: Results) -> dict[str, str]:
    """Return Markdown by name."""
    whole = {"run": _about(results), "budgets": markdown(budgets.cells(results))}
    for name, answer in (("speed", _speed), ("memory", _memory), ("larger", _larger), ("waiting", _waiting)):
        try:
            whole[name] = markdown(answer(results))
        except LookupError:  # the run does not have these rows
            continue
    return whole


def _row(results: Results, benchmark: str, path: str, load: str) -> Row:
    """Return a row.

    Raises:
        LookupError: the run does not have it.
    """
    for row in results.rows[benchmark]:
        if (row.path, row.load) == (path, load):
            return row
    raise LookupError(path, load)


def _speed(results: Results) -> list[list[str]]:
    lines = [["path", "load", "times the calls of", "calls/s", "p50"]]
    for benchmark, path, load in SPEED:
        row = _row(results, benchmark, path, load)
        times = ", ".join(f"{side}: {number_of(ratios[CALLS].middle)}" for side, ratios in row.ratios.items())
        figures = row.sides[OURS]
        lines.append([path, load, times, number_of(figures[CALLS]), f"{number_of(figures[P50])} ms"])
    return lines


def _memory(results: Results) -> list[list[str]]:
    idle = _row(results, "sessions", "an idle session: its memory", "1,000 sessions")
    each = "KiB a session"
    server = _row(results, "steps", "/ws step, async tool", "32 clients")
    kept = _row(results, "sessions", "connect, reset, step, close", "10,000 episodes")
    started = _row(results, "starting", "import of the client", "1")
    return [
        ["what", "how", "of a peer", "mcpenv"],
        [
            "an idle session, with its socket",
            "1,000 sessions",
            ", ".join(
                f"{side}: {number_of(f[each])} KiB" for side, f in idle.sides.items() if side != OURS and len(f) > 1
            ),
            f"{number_of(idle.sides[OURS][each])} KiB",
        ],
        ["a server", "32 clients", _others(server, "MiB", " MiB"), f"{number_of(server.sides[OURS]['MiB'])} MiB"],
        ["after 10,000 episodes", "times that after 1,000", "", number_of(kept.sides[OURS]["MiB, ratio"])],
        [
            "import of the client",
            "time",
            _others(started, "wall ms", " ms"),
            f"{number_of(started.sides[OURS]['wall ms'])} ms",
        ],
    ]


def _others(row: Row, figure: str, unit: str) -> str:
    """Return a figure of the other sides, as the text of one cell."""
    return ", ".join(f"{side}: {number_of(of[figure])}{unit}" for side, of in row.sides.items() if side != OURS)


def _larger(results: Results) -> list[list[str]]:
    lines = [["sessions", "side", "calls/s", "p50", "server CPU a step", "memory"]]
    for load in ("10 sessions", "100 sessions", "1,000 sessions", "10,000 sessions"):
        row = _row(results, "growth", MANY, load)
        for side, figures in row.sides.items():
            lines.append(
                [
                    load if side == OURS else "",
                    side,
                    number_of(figures[CALLS]),
                    f"{number_of(figures[P50])} ms",
                    f"{number_of(figures[CPU])} µs",
                    f"{number_of(figures['MiB'])} MiB",
                ]
            )
    return lines


def _waiting(results: Results) -> list[list[str]]:
    lines = [["sessions", "side", "succeeded", "all done after"]]
    for row in results.rows["concurrency"]:
        for side, figures in row.sides.items():
            lines.append(
                [
                    row.load if side == OURS else "",
                    side,
                    f"{number_of(figures['succeeded %'])} %",
                    f"{number_of(figures['all s'])} s",
                ]
            )
    return lines


def _about(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"{results.date}, on {results.machine}, whose load average had been {results.load:.1f} before; "
        f"a {results.effort} run. {versions}."
    )
