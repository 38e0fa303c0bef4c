"""Statistics of an evaluation, held against counting by brute force and against properties."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from statistics import NormalDist, fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.evaluation import Acted
from mcpenv.extensions.evaluation.episode import _result
from mcpenv.extensions.evaluation.results import EpisodeResult, Failure
from mcpenv.extensions.evaluation.run_tables import failure_text
from mcpenv.extensions.evaluation.statistics import bootstrap, ks_shown, pass_at_k, quantile, wilson
from mcpenv.extensions.evaluation.summary import summarize
from mcpenv_client.types.records import Trajectory


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_passed_one(samples: int) -> None:
    for passed, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        outcomes = [True] * passed + [False] * (samples - passed)
        chosen = [any(choice) for choice in itertools.combinations(outcomes, k)]
        assert pass_at_k(samples, passed, k) == pytest.approx(float(Fraction(sum(chosen), len(chosen))), abs=1e-15)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_product_form_of_its_paper(drawn: tuple[int, int, int]) -> None:
    samples, passed, k = drawn
    by_product = 1.0
    if samples - passed >= k:
        by_product = 1.0 - math.prod(1.0 - k / n for n in range(samples - passed + 1, samples + 1))
    assert pass_at_k(samples, passed, k) == pytest.approx(by_product, abs=1e-9)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_1_is_the_share_that_passed_and_more_samples_never_lower_it(drawn: tuple[int, int]) -> None:
    samples, passed = drawn
    every = [pass_at_k(samples, passed, k) for k in range(1, samples + 1)]
    assert every[0] == pytest.approx(passed / samples)
    assert all(before <= after + 1e-12 for before, after in itertools.pairwise(every))
    assert every[-1] == (1.0 if passed else 0.0)


def test_pass_at_k_of_binomial_draws_has_the_true_value_as_its_mean() -> None:
    chance, samples, k = 0.3, 6, 3
    mean = sum(
        math.comb(samples, c) * chance**c * (1 - chance) ** (samples - c) * pass_at_k(samples, c, k)
        for c in range(samples + 1)
    )
    assert mean == pytest.approx(1 - (1 - chance) ** k)


@pytest.mark.parametrize(("samples", "passed", "k"), [(3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, passed, k)


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_wilson_interval_is_that_of_the_literature(passed: int, trials: int, low: float, high: float) -> None:
    interval = wilson(passed / trials, trials)
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_wilson_interval_has_the_rates_that_a_score_test_does_not_reject(drawn: tuple[int, int]) -> None:
    trials, passed = drawn
    rate = passed / trials
    interval = wilson(rate, trials)
    assert interval is not None
    assert 0.0 <= interval.low <= rate <= interval.high <= 1.0
    z = NormalDist().inv_cdf(0.975)
    for bound in interval:
        if 0.0 < bound < 1.0:
            assert abs(rate - bound) / math.sqrt(bound * (1 - bound) / trials) == pytest.approx(z, rel=1e-6)


def test_no_trials_have_no_interval() -> None:
    assert wilson(0.0, 0) is None
    assert bootstrap([]) is None
    assert bootstrap([0.5]) is None


floats = st.floats(-1e6, 1e6)


@given(st.lists(floats, min_size=2, max_size=30), st.integers(0, 5))
def test_a_bootstrap_interval_lies_within_the_values_and_is_the_same_for_the_same_seed(
    values: list[float], seed: int
) -> None:
    interval = bootstrap(values, seed=seed, resamples=50)
    assert interval is not None and interval == bootstrap(values, seed=seed, resamples=50)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack


def test_a_bootstrap_interval_is_near_that_of_all_possible_draws() -> None:
    values = [0.0, 0.25, 1.0, 0.5]
    means = sorted(map(fmean, itertools.product(values, repeat=len(values))))
    exact = quantile(means, 0.025), quantile(means, 0.975)
    assert bootstrap(values, resamples=20_000) == pytest.approx(exact, abs=0.04)


@given(st.lists(floats, min_size=1, max_size=40).map(sorted))
def test_a_quantile_of_a_half_is_the_median_and_the_ends_are_the_ends(ordered: list[float]) -> None:
    assert quantile(ordered, 0.5) == pytest.approx(median(ordered), abs=1e-6)
    assert (quantile(ordered, 0.0), quantile(ordered, 1.0)) == (ordered[0], ordered[-1])


@pytest.mark.parametrize(
    ("samples", "shown"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (10, [1, 2, 4, 8, 10])]
)
def test_the_ks_that_are_shown_double_and_end_with_all_samples(samples: int, shown: list[int]) -> None:
    assert ks_shown(samples) == shown


def test_components_that_add_up_to_each_return_add_up_to_the_mean_return() -> None:
    episodes = [
        EpisodeResult("test", "a", 1, 0, score=0.5, components={"verified": 1.0, "policy": -0.5}),
        EpisodeResult("test", "a", 1, 1, score=1.0, components={"verified": 1.0}),
        EpisodeResult("test", "b", 1, 0, score=0.0, components={"verified": 0.0}),
        EpisodeResult("test", "c", 1, 0, failure=Failure.ENVIRONMENT_ERROR, components={"policy": -9.0}),
    ]
    found = summarize(episodes, len(episodes))
    assert found.mean_return is not None and found.mean_return.value == 0.375
    assert found.components == {"policy": -0.125, "verified": 0.5}


def test_the_reasons_of_a_verifier_stand_where_a_failure_would() -> None:
    played = Trajectory("e", terminated=True, problems=[f"problem {number}" for number in range(5)])
    result = _result(EpisodeResult("test", "a", 1, 0), Acted(), played, 1.0)
    assert result.to_plain()["problems"] == played.problems
    assert failure_text(result) == "problem 0; problem 1; problem 2; and 2 more"
    assert failure_text(EpisodeResult("test", "a", 1, 0)) == ""
