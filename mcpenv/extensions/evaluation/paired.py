"""Paired differences: the change of a figure between two evaluations of the same tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean

from mcpenv_client.scores import RELATIVE

from .statistics import LEVEL, Interval

EXACT_TASKS = 13
"""Maximum number of tasks for which all subsets are used; above it, a random sample of them is used."""

ENOUGH_TASKS = 6
"""The smallest number of tasks that can have a 95 % interval."""

DRAWS = 9999
"""The number of random subsets. With the observed mean added, the count is divisible as the usual levels require."""

_DIGITS = bytes.maketrans(b"01", b"\x00\x01")


@dataclass(frozen=True)
class PairedDifference:
    """The mean over tasks of a difference, with its interval and a test.

    Attributes:
        value: the mean over the tasks.
        interval: the 95 % confidence interval; None for fewer than six tasks, which are too few for that level.
        p: the two-sided p-value of the hypothesis that the mean is 0. It is at most 0.05 exactly if the interval
            excludes 0.
        tasks: number of tasks.
        changed: number of tasks with a difference other than 0. Fewer than six cannot be significant.
    """

    value: float
    interval: Interval | None
    p: float
    tasks: int
    changed: int

    @property
    def significant(self) -> bool:
        """True if the interval excludes 0."""
        return self.interval is not None and (self.interval.low > 0.0 or self.interval.high < 0.0)


def paired_difference(values: Sequence[float], *, seed: int = 0, level: float = LEVEL) -> PairedDifference | None:
    """Return the mean of the tasks' differences with its interval; None without tasks.

    The p-value comes from the randomization test of paired samples (Fisher 1935, The Design of Experiments, section
    21). If both evaluations were of the same agent, each difference could equally have the other sign. The interval
    contains the means that this test does not reject. Its bounds lie between two typical values, which are the means of
    subsets of the tasks (Hartigan 1969, Journal of the American Statistical Association 64). With one sample of each
    task the test is the exact test of McNemar (1947).

    Interval and test hold for few tasks too, if differences of tasks are independent and symmetric about one value.
    Samples of a task need not be independent of each other, because each task counts once.

    Args:
        values: one for each task: the mean of its samples in one evaluation minus their mean in the other.
        seed: the seed of the sample of subsets; equal seeds give equal results.
        level: the confidence level, between 0 and 1, both excluded.
    """
    if not values:
        return None
    typical = sorted(_typical_values(values, random.Random(seed)))
    count = len(typical) + 1
    tail = math.floor((1.0 - level) / 2.0 * count + RELATIVE)
    interval = Interval(typical[tail - 1], typical[-tail]) if tail else None
    not_above, not_below = sum(mean <= 0.0 for mean in typical), sum(mean >= 0.0 for mean in typical)
    p = min(1.0, 2.0 * (1 + min(not_above, not_below)) / count)
    return PairedDifference(fmean(values), interval, p, len(values), sum(abs(value) > RELATIVE for value in values))


def _typical_values(values: Sequence[float], rng: random.Random) -> Iterator[float]:
    """Yield the means of subsets, without the empty one. Means that differ from 0 only by rounding errors become 0."""
    size = len(values)
    nothing = RELATIVE * max(map(abs, values))
    for subset in range(1, 1 << size) if size <= EXACT_TASKS else _drawn(size, rng):
        mask = f"{subset:0{size}b}".encode().translate(_DIGITS)
        mean = math.fsum(compress(values, mask)) / subset.bit_count()
        yield 0.0 if abs(mean) <= nothing else mean


def _drawn(size: int, rng: random.Random) -> Iterator[int]:
    drawn = 0
    while drawn < DRAWS:
        subset = rng.getrandbits(size)
        if subset:
            drawn += 1
            yield subset


def fisher_p(passed: int, samples: int, other_passed: int, other_samples: int) -> float:
    """Return the two-sided p-value of the hypothesis that two rates are equal (Fisher's exact test, 1935).

    It is the probability, given the sums of the table, of all tables that are not more probable than this one.

    Args:
        passed, samples: of one rate.
        other_passed, other_samples: of the other one.

    Raises:
        ValueError: more samples passed than there are, or a count is negative.
    """
    if not 0 <= passed <= samples or not 0 <= other_passed <= other_samples:
        raise ValueError(f"{passed} of {samples} and {other_passed} of {other_samples}: passed must be 0 to samples")
    total = passed + other_passed
    ways = [
        math.comb(samples, here) * math.comb(other_samples, total - here)
        for here in range(max(0, total - other_samples), min(samples, total) + 1)
    ]
    observed = math.comb(samples, passed) * math.comb(other_samples, other_passed)
    # The numbers of tables are integers, so that tables of equal probability compare equal.
    return sum(way for way in ways if way <= observed) / sum(ways)
