"""Two episodes are aligned by their calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.records import alignment
from mcpenv.extensions.records.alignment import ALONE, aligned
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome, Trajectory

STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 1)), max_size=7)


def episode(*steps: tuple[str, int, int]) -> RecordedEpisode:
    """Return an episode of steps: tool, argument and result."""
    made = [
        StepRecord(ToolCall(name, {"n": given}, at), ToolOutcome.returned(str(result), 0.1))
        for at, (name, given, result) in enumerate(steps, 1)
    ]
    return RecordedEpisode(Trajectory("e", steps=made), RecordedEnvironment("Letters"))


def letters(text: str) -> RecordedEpisode:
    return episode(*((letter, 0, 0) for letter in text))


def test_an_extra_step_is_one_difference_wherever_it_is() -> None:
    assert [pair for pair in aligned(letters("abcd"), letters("abxcd")) if pair[2]] == [(None, 2, ALONE)]
    assert [pair for pair in aligned(letters("xabcd"), letters("abcd")) if pair[2]] == [(0, None, ALONE)]
    assert aligned(letters("aXbc"), letters("abYc")) == [
        (0, 0, None), (1, None, ALONE), (2, 1, None), (None, 2, ALONE), (3, 3, None),
    ]  # fmt: skip


def test_steps_of_one_tool_are_paired_by_their_calls_first() -> None:
    one, other = episode(("a", 1, 0), ("a", 2, 0)), episode(("a", 2, 1))
    assert aligned(one, other) == [(0, None, ALONE), (1, 0, "the outcome differs")]
    assert aligned(episode(("a", 1, 0)), episode(("a", 2, 1))) == [(0, 0, "call and outcome differ")]
    assert aligned(letters("a"), letters("b")) == [(0, None, ALONE), (None, 0, ALONE)]


@given(STEPS, STEPS)
def test_each_step_is_in_one_pair_in_order_and_equal_episodes_have_no_difference(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]
) -> None:
    pairs = aligned(episode(*one), episode(*other))
    assert [a for a, _, _ in pairs if a is not None] == list(range(len(one)))
    assert [b for _, b, _ in pairs if b is not None] == list(range(len(other)))
    for a, b, difference in pairs:
        assert (difference is None) == (a is not None and b is not None and one[a] == other[b])
        assert a is None or b is None or one[a][0] == other[b][0]
    assert one != other or all(difference is None for _, _, difference in pairs)


def test_long_episodes_are_paired_by_number_between_their_equal_ends() -> None:
    long = letters("a" + "bc" * 800 + "a"), letters("a" + "cb" * 700 + "a")
    assert alignment.MAX_PAIRS < 1600 * 1400
    pairs = aligned(*long)
    assert pairs[0] == (0, 0, None) and pairs[-1] == (1601, 1401, None) and len(pairs) == 1602
