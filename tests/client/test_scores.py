"""Sums of rewards do not depend on their order, and are compared with one tolerance."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv_client.scores import advantages, advantages_of_scores, discounted_returns, equal, ranks, reaches, score_of
from mcpenv_client.types.records import Plane, Reward, StepRecord, ToolCall, ToolOutcome, Trajectory, summed, total

REWARDS = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7, -0.1, 1 / 3, 1e-3, 1e6]), max_size=30)


def played(values: list[float]) -> Trajectory:
    steps = [StepRecord(ToolCall("pay", {}, number), ToolOutcome(), Reward(each)) for number, each in enumerate(values)]
    return Trajectory("e", steps=steps, total_reward=summed(values), terminated=True)


@given(REWARDS, st.randoms())
def test_a_sum_is_the_same_in_any_order(values: list[float], random: object) -> None:
    shuffled = copy.copy(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summed(values) == summed(shuffled) == math.fsum(values)


def test_a_sum_that_is_too_large_is_infinite() -> None:
    assert summed([1e308, 1e308]) == summed([math.inf, 1.0]) == math.inf
    assert discounted_returns(played([1e308, 1e308]))[0] == math.inf
    with pytest.raises(ValueError, match="reward is inf"):
        total(1e308, 1e308)


def test_only_rounding_is_tolerated() -> None:
    assert equal(0.1 + 0.2, 0.3) and reaches(1 - 1e-12, 1.0) and reaches(2.0, 1.0)
    assert equal(1e6 * (0.1 + 0.2), 3e5)
    assert not equal(1e-10, 2e-10) and not reaches(0.9999, 1.0)


def test_parts_of_one_step_are_added_exactly() -> None:
    found = total(*(Reward(each, {"part": each}) for each in (0.1, 0.2, 0.3)))
    assert found == Reward(0.6, {"part": 0.6})


@given(st.permutations([0.1, 0.2, 0.3, 0.4]))
def test_episodes_that_earned_the_same_otherwise_are_equal(values: list[float]) -> None:
    group = [played(values), played([0.5, 0.5]), played([0.7, 0.1 + 0.2])]
    assert advantages(group) == advantages(group, baseline="leave_one_out") == [0.0, 0.0, 0.0]
    assert ranks(group) == [2.0, 2.0, 2.0]


def test_scores_that_really_differ_keep_their_order() -> None:
    group = [played([0.0]), played([1e-10]), played([1e-4]), played([0.1 + 0.2]), played([0.3])]
    assert ranks(group) == [5.0, 4.0, 3.0, 1.5, 1.5]
    found = advantages(group)
    assert found[0] < found[1] < found[2] < found[3] == found[4]  # type: ignore[operator]


def test_undiscounted_returns_are_exact() -> None:
    assert discounted_returns(played([0.1] * 10))[0] == 1.0


@pytest.mark.parametrize("reward", [0.0, 0.5])
def test_an_episode_whose_only_reward_is_that_of_its_reset_is_scored(reward: float) -> None:
    trajectory = Trajectory("e", observation={"reward": reward}, total_reward=reward, terminated=True)
    assert score_of(trajectory) == trajectory.earned == reward
    assert score_of(Trajectory("e", observation={"reward": None}, terminated=True)) is None


def test_an_episode_that_nothing_scores_has_no_score_though_steps_were_dropped() -> None:
    step = StepRecord(ToolCall("look", {}, 9, Plane.CONTROL, None), ToolOutcome())
    assert score_of(Trajectory("e", steps=[step], dropped=8, terminated=True)) is None
    assert score_of(Trajectory("e", steps=[step], dropped=8, terminated=True, total_reward=0.5)) == 0.5
    scored = replace(step, reward=Reward(0.0))
    assert score_of(Trajectory("e", steps=[scored], dropped=8, terminated=True)) == 0.0


def test_advantages_of_large_scores_do_not_overflow() -> None:
    assert advantages_of_scores([1e200, -1e200]) == pytest.approx([1.0, -1.0])
