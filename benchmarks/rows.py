"""The rows: one way of doing something under one load, and every side that does it, measured in alternation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from .effort import Effort
from .load import Round, Work, one_round
from .pairs import middle
from .serving import Server

OURS = "mcpenv"
CALLS, P50, P99, CPU, MEMORY = "calls/s", "p50 ms", "p99 ms", "CPU µs", "MiB"
"""The figures of a row in which calls are made. Processor time is that of one call, and like the memory that of the
server; in rows without one that of the process, in rows of clients that of the client."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a figure over the rounds: the median, and the quartiles."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return cls(ordered[len(ordered) // 4], middle(ordered), ordered[-1 - len(ordered) // 4])


@dataclass(slots=True)
class Row:
    """The figures of all sides for one path under one load.

    Attributes:
        path: what is done.
        load: how often at once, or how many.
        sides: figures by side, then by name; the name has the unit.
        ratios: mcpenv's figure to that of each other side, by side and figure; round by round where there are rounds.
    """

    path: str
    load: str
    sides: dict[str, dict[str, float]] = field(default_factory=dict)
    ratios: dict[str, dict[str, Spread]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        ratios = {
            side: {name: Spread(**spread) for name, spread in figures.items()}
            for side, figures in data["ratios"].items()
        }
        return cls(data["path"], data["load"], {**data["sides"]}, ratios)


class Player(Protocol):
    """The interface of a side that is compared."""

    async def play(self, seconds: float) -> Round:
        """Play one round."""
        ...

    def resident_kib(self) -> int:
        """Return the present resident memory in KiB."""
        ...


@dataclass(frozen=True, slots=True)
class Side:
    """The side of a server and clients that call it.

    Attributes:
        clients: what each client does.
        server: whose processor time and memory are read.
        before: done before each round, not measured.
    """

    server: Server
    clients: Sequence[Work]
    before: Callable[[], Awaitable[None]] | None = None

    async def play(self, seconds: float) -> Round:
        """Play one round."""
        if self.before is not None:
            await self.before()
        return await one_round(self.clients, seconds, self.server.cpu_s)

    def resident_kib(self) -> int:
        """Return the server's memory in KiB."""
        return self.server.resident_kib()


class Rounds:
    """The player whose rounds are kept.

    Args:
        seconds: the least that a round takes.

    Attributes:
        played: its rounds.
    """

    def __init__(self, player: Player, seconds: float = 0.0) -> None:
        self._player = player
        self._seconds = seconds
        self.played: list[Round] = []

    async def play(self, seconds: float) -> Round:
        """Play one round."""
        played = await self._player.play(max(seconds, self._seconds))
        self.played.append(played)
        return played

    def resident_kib(self) -> int:
        """Return the server's memory in KiB."""
        return self._player.resident_kib()


async def compare(path: str, load: str, sides: Mapping[str, Player], effort: Effort) -> Row:
    """Measure all sides in alternation. Each round has each side once, and each side is first equally often."""
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(-1, effort.rounds):
        turned = number // 2 % len(names)
        order = [*names[turned:], *names[:turned]]
        for name in order if number % 2 == 0 else reversed(order):
            try:
                played = await sides[name].play(effort.round_s)
            except Exception as error:
                error.add_note(f"while {name} was measured: {path}, {load}")
                raise
            if number >= 0:
                rounds[name].append(played)
    row = Row(path, load)
    for name, of in rounds.items():
        row.sides[name] = {
            CALLS: middle([each.calls_per_s for each in of]),
            P50: middle([each.percentile_ms(50) for each in of]),
            P99: middle([each.percentile_ms(99) for each in of]),
            CPU: middle([each.cpu_us for each in of]),
            MEMORY: sides[name].resident_kib() / 1024,
        }
    for name in names:
        if name != OURS and OURS in rounds:
            row.ratios[name] = {
                CALLS: _ratios(rounds[OURS], rounds[name], lambda each: each.calls_per_s),
                CPU: _ratios(rounds[OURS], rounds[name], lambda each: each.cpu_us),
            }
    return row


def add_ratios(row: Row, *names: str) -> None:
    """Add ratios of figures that were not measured round by round."""
    for side, figures in row.sides.items():
        if side != OURS:
            shared = [name for name in names if name in figures and figures[name] > 0]
            row.ratios[side] = {name: Spread.of([row.sides[OURS][name] / figures[name]]) for name in shared}


def figures_of(calls: int, wall_s: float, cpu_s: float, latencies: list[float]) -> dict[str, float]:
    """Return the figures of calls that were made once, without rounds."""
    measured = Round(calls, wall_s, cpu_s, latencies)
    return {
        CALLS: measured.calls_per_s,
        P50: measured.percentile_ms(50),
        P99: measured.percentile_ms(99),
        CPU: measured.cpu_us,
    }


def _ratios(ours: Sequence[Round], theirs: Sequence[Round], of: Callable[[Round], float]) -> Spread:
    return Spread.of([of(one) / of(other) for one, other in zip(ours, theirs, strict=True)])
