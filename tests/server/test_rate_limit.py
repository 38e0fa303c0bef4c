"""The rate of an agent's requests, by a clock of the test's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.server.sessions.rate_limit import MAX_KEYS, Rate
from mcpenv_client import RateLimited


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(rate: Rate, key: str, tries: int) -> int:
    """Return how many of ``tries`` are allowed."""
    count = 0
    for _ in range(tries):
        try:
            rate.spend(key)
        except RateLimited:
            continue
        count += 1
    return count


def test_a_seconds_worth_may_come_at_once_and_then_one_an_interval() -> None:
    clock = Clock()
    rate = Rate(4, now=clock)
    assert taken(rate, "ada", 10) == 4
    clock.now += 0.25
    assert taken(rate, "ada", 10) == 1
    clock.now += 100
    assert taken(rate, "ada", 10) == 4


def test_who_is_refused_is_told_when_to_come_back() -> None:
    clock = Clock()
    rate = Rate(0.5, now=clock)
    rate.spend("ada")
    with pytest.raises(RateLimited, match=r"at most 0.5 a second; try again in 2.0 s") as refused:
        rate.spend("ada")
    assert refused.value.retry_after_s == 2.0
    clock.now += 2.0
    rate.spend("ada")


def test_one_agents_requests_take_nothing_from_another() -> None:
    rate = Rate(2, now=Clock())
    assert [taken(rate, name, 5) for name in ("ada", "bob", "ada")] == [2, 2, 0]


def test_agents_not_heard_of_for_longest_are_forgotten() -> None:
    rate = Rate(1, now=Clock())
    for number in range(MAX_KEYS):
        rate.spend(str(number))
    assert taken(rate, "0", 1) == 0
    rate.spend("one more")
    assert (taken(rate, "2", 1), taken(rate, "0", 1)) == (0, 1)


@given(
    st.floats(0.1, 50, allow_subnormal=False),
    st.lists(st.floats(0, 3, allow_subnormal=False), max_size=60),
)
def test_in_no_span_of_time_are_more_taken_than_its_seconds_and_one_more_allow(
    per_s: float, pauses: list[float]
) -> None:
    clock = Clock()
    rate = Rate(per_s, now=clock)
    times: list[float] = []
    for pause in pauses:
        clock.now += pause
        try:
            rate.spend("ada")
        except RateLimited as refused:
            assert refused.retry_after_s is not None and refused.retry_after_s > 0
            continue
        times.append(clock.now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            span_s = times[last] - times[first]
            assert last - first + 1 <= max(per_s, 1) + span_s * per_s + 1e-3
