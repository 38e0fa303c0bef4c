"""The pairs: two ways of doing the same, measured in alternation, so that disturbances of the machine affect both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one round of one side: seconds for one step, on the clock and of processor time."""

    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Pair:
    """Rounds of both sides; the nth of one was measured beside the nth of the other."""

    without: list[Measured] = field(default_factory=list)
    with_it: list[Measured] = field(default_factory=list)

    def ratios(self, of: Callable[[Measured], float]) -> list[float]:
        """Return the ratios of with to without, round by round."""
        return [of(one) / of(other) for one, other in zip(self.with_it, self.without, strict=True)]


Side = Callable[[int], Measured]
"""Measures a round, which it is told the number of: both sides do the same in rounds of the same number."""


def take_turns(sides: tuple[Side, Side], rounds: int) -> Pair:
    """Measure (without, with) so many times, in alternating order. The first round is discarded."""
    pair = Pair()
    for number in range(-1, rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        measured = {side: sides[side](number) for side in order}
        if number >= 0:
            pair.without.append(measured[0])
            pair.with_it.append(measured[1])
    return pair


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
