"""The budgets: limits of each path's cost, and the check of a run against them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .growth import GROWING
from .inside import BARE, BARE_BLOCKING, BLOCKING_CLIENT, BLOCKING_IN_THREAD, CLIENT
from .mcp_calls import HANDSHAKE, MODERN, TUNED, VERIFIERS
from .results import Results
from .rows import CALLS, CPU, OURS, P50, Row
from .sessions import EACH, GROWTH, LONG, SLOWER, THREADS
from .starting import WALL
from .steps import ASYNC, FLOOR, OPENENV
from .tables import number_of

MET, NOT_MET, NOT_MEASURED = "met", "not met", "not measured"

Figure = Callable[[Row], float]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one figure of one row.

    Attributes:
        benchmark, path, load: which row.
        what: the figure, in words.
        at_least, at_most: the limits; None: none on that side.
        unit: follows the number.
    """

    benchmark: str
    path: str
    load: str
    what: str
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    def judged(self, results: Results) -> tuple[float | None, str]:
        """Return the figure, and "met", "not met" or "not measured"."""
        row = next(
            (row for row in results.rows.get(self.benchmark, []) if (row.path, row.load) == (self.path, self.load)),
            None,
        )
        if row is None:
            return None, NOT_MEASURED
        try:
            figure = self.figure(row)
        except KeyError:
            return None, NOT_MEASURED
        low = self.at_least is None or figure >= self.at_least
        high = self.at_most is None or figure <= self.at_most
        return figure, MET if low and high else NOT_MET

    @property
    def limit(self) -> str:
        """Return the limits in words."""
        both = [
            *([] if self.at_least is None else [f">= {number_of(self.at_least)}{self.unit}"]),
            *([] if self.at_most is None else [f"<= {number_of(self.at_most)}{self.unit}"]),
        ]
        return ", ".join(both)


def ratio(side: str, name: str) -> Figure:
    """Return the median of the ratios to a side."""
    return lambda row: row.ratios[side][name].middle


def own(name: str, factor: float = 1.0) -> Figure:
    """Return a figure of mcpenv's."""
    return lambda row: row.sides[OURS][name] * factor


STEP = f"/ws step, {ASYNC.name}"
IDLE = "an idle session: its memory"
MORE_SESSIONS = ("100", "1,000", "10,000")

BUDGETS = (
    Budget("steps", STEP, "32 clients", f"calls/s, times {OPENENV}", ratio(OPENENV, CALLS), at_least=40),
    Budget("steps", STEP, "32 clients", "server CPU, times the floor", ratio(FLOOR, CPU), at_most=2.6),
    Budget("steps", STEP, "1 client", "p50", own(P50), at_most=0.25, unit=" ms"),
    Budget("control", "/ws connect + reset", "32 clients", "a second", own(CALLS), at_least=700),
    Budget("inside", "in-process step, async tool", "1 at a time", "p50", own(P50, 1e3), at_most=30, unit=" µs"),
    Budget("inside", "in-process step, sync tool", "1 at a time", "p50", own(P50, 1e3), at_most=30, unit=" µs"),
    Budget("inside", "a new instance, 2 tools", "1 at a time", "p50", own(P50, 1e3), at_most=20, unit=" µs"),
    Budget("inside", CLIENT, "1 client", "its CPU, times that of bare websockets", ratio(BARE, CPU), at_most=1.3),
    *(
        Budget(
            "inside",
            path,
            "1 client",
            "its CPU, times that of bare blocking websockets",
            ratio(BARE_BLOCKING, CPU),
            at_most=3,
        )
        for path in (BLOCKING_CLIENT, BLOCKING_IN_THREAD)
    ),
    *(
        Budget(
            "mcp",
            f"/mcp {era} tools/call, {kind} tool, 1 tool",
            load,
            f"calls/s, times {TUNED}",
            ratio(TUNED, CALLS),
            at_least=least,
        )
        for era, load, least in (
            (MODERN, "1 client", 1.05),
            (MODERN, "32 clients", 1.9),
            (HANDSHAKE, "1 client", 0.9),
            (HANDSHAKE, "32 clients", 0.9),
        )
        for kind in ("async", "sync")
    ),
    Budget(
        "mcp",
        f"/mcp {MODERN} tools/call, async tool, 1 tool",
        "32 clients",
        f"calls/s, times {VERIFIERS}",
        ratio(VERIFIERS, CALLS),
        at_least=1,
    ),
    Budget(
        "sessions",
        IDLE,
        "1,000 sessions",
        "above the floor's socket",
        lambda row: row.sides[OURS][EACH] - row.sides[FLOOR][EACH],
        at_most=20,
        unit=" KiB",
    ),
    # A few belong to the server, and are there once.
    Budget("sessions", IDLE, "1,000 sessions", "threads a session", own(THREADS), at_most=0.01),
    Budget("starting", "import of the client", "1", "on the clock", own(WALL), at_most=350, unit=" ms"),
    *(
        Budget(
            "growth",
            GROWING,
            f"{count} sessions",
            "CPU, times that with 10; times the floor's",
            lambda row: row.sides[OURS][SLOWER] / row.sides[FLOOR][SLOWER],
            at_most=1.2,
        )
        for count in MORE_SESSIONS
    ),
    Budget(
        "sessions",
        LONG,
        "after 1,000,000 steps",
        "CPU of a step, times that of a new episode",
        own(SLOWER),
        at_most=1.2,
    ),
    Budget(
        "sessions",
        "connect, reset, step, close",
        "10,000 episodes",
        "memory, times that after the first 1,000",
        own(GROWTH),
        at_least=0.98,
        at_most=1.02,
    ),
)


def cells(results: Results) -> list[list[str]]:
    """Return a table: a heading, and a line for each budget."""
    lines = [["path", "load", "figure", "budget", "measured", ""]]
    for budget in BUDGETS:
        figure, verdict = budget.judged(results)
        measured = "" if figure is None else f"{number_of(figure)}{budget.unit}"
        lines.append([budget.path, budget.load, budget.what, budget.limit, measured, verdict])
    return lines
