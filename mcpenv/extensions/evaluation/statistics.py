"""Statistics: estimates from the results of episodes, with confidence intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

LEVEL = 0.95
"""The confidence level of intervals."""

RESAMPLES = 2000
"""The number of resamples of a bootstrap interval."""


class Interval(NamedTuple):
    """The closed interval from ``low`` to ``high``."""

    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` samples of a task passes.

    1 - C(samples - passed, k) / C(samples, k), equation 1 of Chen et al. 2021 (arXiv:2107.03374).

    Args:
        samples: number of samples of the task.
        passed: number of samples that passed.
        k: 1 to ``samples``.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_counts("pass@", samples, passed, k)
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_hat_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the probability that all of ``k`` samples of a task pass.

    C(passed, k) / C(samples, k), section 3 of Yao et al. 2024 (tau-bench, arXiv:2406.12045), written pass^k.

    Args:
        samples: number of samples of the task.
        passed: number of samples that passed.
        k: 1 to ``samples``.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_counts("pass^", samples, passed, k)
    return math.comb(passed, k) / math.comb(samples, k)


def _check_counts(what: str, samples: int, passed: int, k: int) -> None:
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"{what}{k} of {passed} passed among {samples} samples: k must be 1 to samples, passed 0 to samples"
        )


def wilson(rate: float, trials: int, level: float = LEVEL) -> Interval | None:
    """Return the score interval of a rate (Wilson 1927); None without trials.

    It is also accurate for rates near 0 and 1, and for few trials.

    Args:
        rate: the share of trials that passed, 0 to 1.
        trials: number of independent trials.
        level: the confidence level, between 0 and 1, both excluded.

    Raises:
        ValueError: the rate or the number of trials is out of range.
    """
    if not 0.0 <= rate <= 1.0 or trials < 0:
        raise ValueError(f"a rate of {rate} in {trials} trials: a rate must be 0 to 1, and trials 0 or more")
    if trials == 0:
        return None
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    shrunk = 1.0 + z * z / trials
    middle = (rate + z * z / (2.0 * trials)) / shrunk
    half = z / shrunk * math.sqrt(rate * (1.0 - rate) / trials + z * z / (4.0 * trials * trials))
    # The bounds for rates 0 and 1 are exact; rounding could exclude the rate itself.
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
    """Return the percentile bootstrap interval (Efron 1979) of a statistic of tasks; None for fewer than two tasks.

    Args:
        values: one for each task, because samples of one task are not independent of each other.
        seed: the seed of the resampling; equal seeds give equal intervals.
        resamples: number of resamples, each with as many tasks as ``values``.
        level: the confidence level, between 0 and 1, both excluded.
    """
    if len(values) < 2:
        return None
    rng = random.Random(seed)
    drawn = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    return Interval(quantile(drawn, tail), quantile(drawn, 1.0 - tail))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of ``ordered``, with linear interpolation (Hyndman, Fan 1996, definition 7).

    Args:
        ordered: at least one value, in ascending order.
        share: the quantile's share of values, 0 to 1.
    """
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:
        # No interpolation: rounding could give a value that differs from two equal neighbours.
        return ordered[below]
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def ks_shown(samples: int) -> list[int]:
    """Return the values of k to show pass@k for: the powers of 2 up to ``samples``, and ``samples`` itself."""
    shown = [2**power for power in range(samples.bit_length()) if 2**power <= samples]
    return shown if shown[-1:] == [samples] or samples < 1 else [*shown, samples]
