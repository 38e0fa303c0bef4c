"""Paired differences: against published values, against counting by brute force, and by simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.evaluation.paired import ENOUGH_TASKS, EXACT_TASKS, PairedDifference, fisher_p, paired_difference
from mcpenv.extensions.evaluation.statistics import pass_hat_k

# Differences in height of pairs of plants, cross-fertilized minus self-fertilized, in eighths of an inch: Darwin's
# data in Fisher 1935, The Design of Experiments, section 17. Section 21 counts the sums of signs by hand.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def difference(values: list[float], **given: int) -> PairedDifference:
    found = paired_difference(values, **given)
    assert found is not None
    return found


# -- the test


def by_brute_force(values: list[float]) -> float:
    """Return the p-value of the randomization test: all choices of signs, and the observed one among them."""
    observed = math.fsum(values)
    sums = [
        math.fsum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    above = sum(each >= observed - 1e-9 for each in sums)
    below = sum(each <= observed + 1e-9 for each in sums)
    return min(1.0, 2 * min(above, below) / len(sums))


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=7))
def test_the_p_value_of_few_tasks_is_the_share_of_all_signs_that_are_as_extreme(drawn: list[int]) -> None:
    values = [each / 4 for each in drawn]
    assert difference(values).p == pytest.approx(by_brute_force(values))


def test_the_p_value_of_darwins_plants_is_that_of_fisher() -> None:
    # 1,726 of 32,768 sums are as extreme; 15 tasks are sampled, so the value is near that.
    assert by_brute_force([float(each) for each in DARWIN]) == pytest.approx(1726 / 2**15)
    assert difference([float(each) for each in DARWIN]).p == pytest.approx(0.0527, abs=0.007)


@pytest.mark.parametrize(
    ("lost", "gained", "exact"),
    # The exact test of McNemar: twice the binomial tail of the pairs that differ.
    [(1, 8, 2 * 10 / 2**9), (0, 6, 2 / 2**6), (2, 8, 2 * 56 / 2**10), (5, 5, 1.0)],
)
def test_one_sample_of_each_task_gives_the_exact_test_of_mcnemar(lost: int, gained: int, exact: float) -> None:
    values = [-1.0] * lost + [1.0] * gained
    assert difference(values + [0.0] * 2).p == pytest.approx(exact, abs=0.0 if len(values) + 2 <= EXACT_TASKS else 0.01)
    assert difference(values + [0.0] * 200).p == pytest.approx(exact, abs=0.015)


def test_equal_evaluations_have_a_difference_of_exactly_0() -> None:
    found = difference([0.0] * 20)
    assert (found.value, found.interval, found.p, found.significant) == (0.0, (0.0, 0.0), 1.0, False)


def test_rounding_errors_are_no_difference() -> None:
    values = [0.1 + 0.2 - 0.3] * 3 + [1 / 3 - 2 / 3 + 1 / 3] * 3 + [0.1, 0.2, -0.3]
    assert difference(values).p == pytest.approx(by_brute_force([0.0] * 6 + [1.0, 2.0, -3.0]))


# -- the interval


@pytest.mark.parametrize("tasks", range(1, 10))
def test_fewer_than_six_tasks_have_no_interval_and_cannot_be_significant(tasks: int) -> None:
    found = difference([1.0] * tasks)
    assert (found.interval is None) == (tasks < ENOUGH_TASKS) == (found.p > 0.05)
    assert found.significant == (tasks >= ENOUGH_TASKS)


values_of_tasks = st.lists(st.integers(-8, 8).map(lambda each: each / 8), min_size=1, max_size=25)


@given(values_of_tasks, st.integers(0, 3))
def test_an_interval_leaves_out_0_exactly_where_the_test_rejects(values: list[float], seed: int) -> None:
    found = difference(values, seed=seed)
    assert found == difference(values, seed=seed)
    assert found.significant == (found.p <= 0.05)
    assert found.value == pytest.approx(fmean(values))
    if found.interval is not None:
        assert min(values) <= found.interval.low <= found.interval.high <= max(values)


@given(values_of_tasks)
def test_the_other_way_round_the_interval_is_the_negative_one(values: list[float]) -> None:
    one, other = difference(values), difference([-each for each in values])
    assert (one.p, one.value) == (other.p, -other.value)
    if one.interval is not None:
        assert other.interval == (-one.interval.high, -one.interval.low)


def test_an_interval_has_the_shifts_that_the_test_does_not_reject() -> None:
    values = [0.5, -0.25, 1.0, 0.75, 0.1, 0.3, -0.05, 0.6]
    interval = difference(values).interval
    assert interval is not None
    for bound, outside in ((interval.low, -1e-6), (interval.high, 1e-6)):
        assert by_brute_force([each - bound for each in values]) > 0.05
        assert by_brute_force([each - bound - outside for each in values]) <= 0.05


def test_an_interval_of_many_tasks_is_near_that_of_the_normal_distribution() -> None:
    rng = random.Random(4)
    values = [rng.gauss(0.1, 0.5) for _ in range(400)]
    interval, half = difference(values).interval, 1.96 * stdev(values) / math.sqrt(len(values))
    assert interval == pytest.approx((fmean(values) - half, fmean(values) + half), abs=0.1 * half)


# -- by simulation


def of_samples(rng: random.Random, tasks: int, k: int, gain: float) -> list[float]:
    """Return differences of pass rates: tasks of all kinds, ``k`` samples of each, which share their task's chance."""
    found = []
    for _ in range(tasks):
        chance = rng.betavariate(0.5, 0.5) * (1.0 - gain)
        passed = [sum(rng.random() < each for _ in range(k)) for each in (chance, chance + gain)]
        found.append((passed[1] - passed[0]) / k)
    return found


def share_of(times: int, happens: Callable[[random.Random], bool]) -> float:
    rng = random.Random(20)
    return sum(happens(rng) for _ in range(times)) / times


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "k"), [(6, 4), (10, 1), (16, 4)])
def test_an_agent_compared_with_itself_differs_in_at_most_a_twentieth_of_evaluations(tasks: int, k: int) -> None:
    times = 500
    found = share_of(times, lambda rng: difference(of_samples(rng, tasks, k, 0.0)).significant)
    # Three standard errors above the level.
    assert found <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / times)


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "k"), [(6, 8), (10, 4), (16, 2)])
def test_an_interval_covers_the_true_change_of_clustered_samples(tasks: int, k: int) -> None:
    times, gain = 500, 0.2

    def covers(rng: random.Random) -> bool:
        interval = difference(of_samples(rng, tasks, k, gain)).interval
        return interval is not None and interval.low - 1e-9 <= gain <= interval.high + 1e-9

    assert share_of(times, covers) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / times)


@pytest.mark.slow
def test_a_change_that_is_there_is_mostly_found() -> None:
    assert share_of(100, lambda rng: difference(of_samples(rng, 60, 4, 0.2)).significant) > 0.95


# -- rates of one task


@pytest.mark.parametrize(
    ("table", "p"),
    # The lady tasting tea (Fisher 1935, section 8; Agresti 2002, table 3.8); boys and girls in a table that the
    # documentation of R's fisher.test has (convictions of like-sex twins, Fisher 1970, page 50: p = 0.0005367).
    [((3, 4, 1, 4), 34 / 70), ((4, 4, 0, 4), 2 / 70), ((2, 17, 10, 13), 0.0005367), ((0, 3, 0, 5), 1.0)],
)
def test_the_test_of_two_rates_is_that_of_the_literature(table: tuple[int, int, int, int], p: float) -> None:
    assert fisher_p(*table) == pytest.approx(p, rel=1e-3)


@given(st.integers(0, 12), st.integers(0, 12), st.data())
def test_the_test_of_two_rates_does_not_depend_on_their_order(one: int, other: int, data: st.DataObject) -> None:
    passed, others = data.draw(st.integers(0, one)), data.draw(st.integers(0, other))
    p = fisher_p(passed, one, others, other)
    assert 0.0 < p <= 1.0
    assert p == fisher_p(others, other, passed, one) == fisher_p(one - passed, one, other - others, other)


def test_rates_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2 and 0 of 1"):
        fisher_p(3, 2, 0, 1)


# -- pass^k


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_hat_k_is_the_share_of_all_choices_of_k_samples_that_all_passed(samples: int) -> None:
    for passed, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        outcomes = [True] * passed + [False] * (samples - passed)
        chosen = [all(choice) for choice in itertools.combinations(outcomes, k)]
        assert pass_hat_k(samples, passed, k) == pytest.approx(fmean(chosen))


def test_pass_hat_k_of_binomial_draws_has_the_true_value_as_its_mean() -> None:
    chance, samples, k = 0.7, 6, 3
    mean = sum(
        math.comb(samples, c) * chance**c * (1 - chance) ** (samples - c) * pass_hat_k(samples, c, k)
        for c in range(samples + 1)
    )
    assert mean == pytest.approx(chance**k)


def test_pass_hat_k_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"pass\^4 of 1 passed among 3 samples"):
        pass_hat_k(3, 1, 4)
