"""Statistics: what the results of episodes say of an agent, and how sure that is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

LEVEL = 0.95
"""How often an interval made this way has the true value in it."""

RESAMPLES = 2000
"""How many times tasks are drawn anew for a bootstrap interval."""


class Interval(NamedTuple):
    """From ``low`` to ``high``, both included."""

    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """How likely at least one of ``k`` samples of a task passes, estimated without bias from more of them.

    1 - C(samples - passed, k) / C(samples, k), equation 1 of Chen et al. 2021 (arXiv:2107.03374).

    Args:
        samples: how often the task was tried.
        passed: how many of these passed.
        k: 1 to ``samples``.

    Raises:
        ValueError: one of them is out of range.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} passed among {samples} samples: it needs k samples, at least one")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def wilson(rate: float, trials: int, level: float = LEVEL) -> Interval | None:
    """The score interval of a rate (Wilson 1927); None without trials. Holds also near 0 and 1, and for few trials.

    Args:
        rate: the share of trials that passed, 0 to 1.
        trials: how many there were, independent of each other.
        level: 0 to 1, neither included.
    """
    if not 0.0 <= rate <= 1.0 or trials < 0:
        raise ValueError(f"a rate of {rate} in {trials} trials: a rate is 0 to 1, trials are 0 or more")
    if trials == 0:
        return None
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    shrunk = 1.0 + z * z / trials
    middle = (rate + z * z / (2.0 * trials)) / shrunk
    half = z / shrunk * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4.0 * trials * trials))
    # The bounds at 0 and 1 are exact; rounding would put the rate itself outside.
    low = 0.0 if rate == 0.0 else max(middle - half, 0.0)
    high = 1.0 if rate == 1.0 else min(middle + half, 1.0)
    return Interval(low, high)


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = fmean,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval | None:
    """The percentile bootstrap interval (Efron 1979) of a statistic of tasks; None for fewer than two of them.

    Args:
        values: one for each task: samples of one task are not independent of each other, tasks are.
        seed: the same seed, the same interval.
        resamples: how many times as many tasks are drawn from these.
        level: 0 to 1, neither included.
    """
    if len(values) < 2:
        return None
    rng = random.Random(seed)
    drawn = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    return Interval(quantile(drawn, tail), quantile(drawn, 1.0 - tail))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``ordered`` lies, linear between neighbours (Hyndman, Fan 1996, definition 7).

    Args:
        ordered: at least one value, in ascending order.
        share: 0 to 1.
    """
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:
        # Not interpolated, because a mean of equal floats need not be equal to them.
        return ordered[below]
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def ks_shown(samples: int) -> list[int]:
    """The k of pass@k that are worth showing for that many samples a task: 1, 2, 4, ... and the last."""
    shown = [2**power for power in range(samples.bit_length()) if 2**power <= samples]
    return shown if shown[-1:] == [samples] or samples < 1 else [*shown, samples]
