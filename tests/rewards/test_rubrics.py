"""Rubrics: parts and composites, steps and ends, state, configuration, groups."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fastmcp import Client

from mcpenv import (
    Action,
    CallToolAction,
    Discounted,
    ExecutionError,
    FunctionRubric,
    Gate,
    InvalidRubric,
    MCPEnvironment,
    Misuse,
    Observation,
    OverSteps,
    Reward,
    Rubric,
    Scored,
    Sequence,
    ToolCall,
    ToolOutcome,
    Trajectory,
    Verified,
    WeightedSum,
    advantages,
    ranks,
    rubric_from_config,
    score_of,
)
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, NotSerializable, OperationTimeout, StepRecord, discounted_returns


class Desk(MCPEnvironment):
    """Write words, and hand them in."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, rubric: Rubric | None = None) -> None:
        self.words: list[str] = []
        if rubric is not None:
            self.rubric = rubric

        @self.tool
        def write(word: str) -> int:
            """Write a word."""
            self.words.append(word)
            return len(self.words)

        @self.tool
        async def write_later(word: str) -> int:
            """Write a word, in an async tool."""
            return write(word)

        @self.tool(terminal=True)
        def hand_in() -> str:
            """Hand the words in."""
            return " ".join(self.words)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.words = []


class Short(Rubric):
    """Words of up to ``limit`` letters are good."""

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return None if call.name == "hand_in" else float(len(call.arguments["word"]) <= self.limit)


class New(Rubric):
    """Words that were not written before in this episode are good. Async."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if call.name == "hand_in":
            return None
        await asyncio.sleep(0)
        new = call.arguments["word"] not in self.seen
        self.seen.add(call.arguments["word"])
        return float(new)


class Length(Rubric):
    """A rubric that counts the words at the end."""

    name = "length"

    def score_trajectory(self, trajectory: Trajectory) -> Reward:
        return Reward(len(self.env.words), {"steps": len(trajectory.steps)})


class Counting(Rubric):
    """A rubric that counts its calls: a number is rebound, unlike a set."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, call: ToolCall, outcome: ToolOutcome) -> int:
        self.asked += 1
        return self.asked


def constant(value: Any, name: str = "constant") -> FunctionRubric:
    return FunctionRubric(lambda call, outcome: value, name=name)


def at_end(value: Any, name: str = "at_end") -> FunctionRubric:
    return FunctionRubric(score_trajectory=lambda trajectory: value, name=name)


def failing(name: str = "failing") -> FunctionRubric:
    def fail(*about: Any) -> float:
        raise RuntimeError("no ruler at hand")

    return FunctionRubric(fail, fail, name=name)


def step_of(rubric: Rubric, word: str = "cat") -> Observation:
    env = Desk(rubric)
    env.reset()
    return env.call_tool("write", {"word": word})


# -- rewards of steps and of the end


def test_a_rubric_scores_steps_and_names_its_component() -> None:
    observation = step_of(Short(), "horse")
    assert observation.reward == 0.0 and observation.info["reward"] == {"Short": 0.0}
    assert step_of(Short(5), "horse").reward == 1.0


def test_a_rubric_over_the_trajectory_is_added_to_the_last_steps_reward() -> None:
    env = Desk(WeightedSum([Short(), Length()]))
    env.reset()
    assert env.call_tool("write", {"word": "cat"}).reward == 1.0
    last = env.call_tool("hand_in")
    assert last.done and last.reward == 1.0
    assert last.info["reward"] == {"length": 1.0, "length/steps": 2.0} and last.info["return"] == 2.0
    assert env.trajectory is not None
    assert [step.reward and step.reward.value for step in env.trajectory.steps] == [1.0, 1.0]
    assert env.trajectory.total_reward == 2.0


def test_the_end_is_scored_whoever_ended_the_episode() -> None:
    class Ends(Desk):
        max_steps = 2
        rubric = at_end(5.0)

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            if call.arguments.get("word") == "stop":
                self.finish(0.25)
            return 1.0

    env = Ends()
    env.reset()
    assert env.call_tool("write", {"word": "stop"}).reward == 6.25
    env.reset()
    assert env.call_tool("write", {"word": "go"}).reward == 1.0
    last = env.call_tool("write", {"word": "on"})
    assert last.truncated and last.reward == 6.0
    env.reset()
    assert env.call_tool("hand_in").reward == 6.0


def test_the_trajectory_that_is_scored_has_its_last_step_and_changes_no_record() -> None:
    seen: list[Trajectory] = []

    def look(trajectory: Trajectory) -> None:
        seen.append(trajectory)
        trajectory.steps.clear()
        trajectory.total_reward = 99.0

    copied: list[tuple[int, bool, float]] = []
    peek = FunctionRubric(
        score_trajectory=lambda t: copied.append((len(t.steps), t.terminated, t.total_reward)), name="peek"
    )
    env = Desk(WeightedSum([Short(), peek, FunctionRubric(score_trajectory=look)]))
    env.reset()
    env.call_tool("write", {"word": "cat"})
    env.call_tool("hand_in")
    assert copied == [(2, True, 1.0)]
    assert env.trajectory is not None and len(env.trajectory.steps) == 2 and env.trajectory.total_reward == 1.0
    assert seen[0] is not env.trajectory


def test_score_rubric_and_finish_add_up() -> None:
    class Both(Desk):
        rubric = Short()

        def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
            self.finish(Reward(10.0, {"end": 10.0}))
            return Reward(0.5, {"Short": 0.5})

    env = Both()
    env.reset()
    observation = env.call_tool("write", {"word": "cat"})
    assert observation.reward == 11.5 and observation.info["reward"] == {"Short": 1.5, "end": 10.0}


def test_failed_calls_are_scored_too() -> None:
    env = Desk(FunctionRubric(lambda call, outcome: -1.0 if outcome.error else 0.0, name="errors"))
    env.reset()
    assert env.call_tool("nope").reward == -1.0
    assert env.call_tool("write", {}).reward == -1.0
    assert env.call_tool("write", {"word": "cat"}).reward == 0.0


def test_own_actions_go_to_the_rubric() -> None:
    class Wait(Action):
        type: str = "wait"

    class Waits(Desk):
        action_types = (Wait,)
        rubric = FunctionRubric(lambda call, outcome: 2.0 if call.name == "wait" else None, name="waited")

        def act(self, action: Action) -> Observation:
            return Observation(reward=0.5)

    env = Waits()
    env.reset()
    assert env.step(Wait()).reward == 2.5


# -- None, 0.0 and failed to score


def test_invariant_5_not_scored_and_zero_are_two_things_in_every_composite() -> None:
    for rubric in (
        constant(None),
        WeightedSum([constant(None)]),
        Sequence([constant(None)]),
        Gate(constant(None), constant(1.0, "then")),
        OverSteps(constant(1.0)),
        Discounted(constant(None)),
        at_end(1.0),
    ):
        observation = step_of(rubric)
        assert observation.reward is None and "reward" not in observation.info
    for rubric in (
        constant(0.0),
        WeightedSum([constant(0), constant(None, "other")]),
        Sequence([constant(False)]),
        Gate(constant(0.5), constant(1.0, "then")),
        Discounted(constant(0.0)),
    ):
        assert step_of(rubric).reward == 0.0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda part: part,
        lambda part: WeightedSum([constant(1.0), part]),
        lambda part: Gate(constant(1.0), part),
        lambda part: Sequence([constant(1.0), part]),
        lambda part: WeightedSum([New(), part]),
    ],
    ids=["alone", "sum", "gate", "sequence", "beside an async one"],
)
def test_invariant_5_a_rubric_that_fails_fails_the_step_and_is_never_reward_0(
    wrap: Callable[[Rubric], Rubric], caplog: pytest.LogCaptureFixture
) -> None:
    env = Desk(wrap(failing()))
    env.reset()
    with pytest.raises(ExecutionError) as raised:
        env.call_tool("write", {"word": "cat"})
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert raised.value.incident and raised.value.incident in caplog.text
    assert "no ruler" not in raised.value.message
    assert raised.value.data["stage"] == "rubric"
    assert env.trajectory is not None
    (step,) = env.trajectory.steps
    assert step.reward is None and step.outcome.error is not None and env.step_count == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, "1.0", [1.0], 10**400])
@pytest.mark.parametrize("make", [constant, at_end])
def test_invariant_5_what_is_no_finite_number_fails_the_step(make: Callable[[Any], Rubric], value: Any) -> None:
    env = Desk(make(value))
    env.reset()
    with pytest.raises(ExecutionError) as raised:
        env.call_tool("hand_in")
    assert isinstance(raised.value.__cause__, TypeError | ValueError)


def test_invariant_5_values_that_are_too_large_together_fail_the_step() -> None:
    for rubric in (
        WeightedSum([constant(1e308), constant(1e308, "b")]),
        OverSteps(constant(1e308)),
        WeightedSum([constant(1e308), at_end(1e308)]),
    ):
        env = Desk(rubric)
        env.max_steps = 2
        env.reset()
        with pytest.raises(ExecutionError):
            for _ in range(2):
                env.call_tool("write", {"word": "cat"})


def test_an_episode_whose_end_could_not_be_scored_is_over() -> None:
    env = Desk(WeightedSum([Short(), FunctionRubric(score_trajectory=lambda t: 1 / 0, name="broken")]))
    env.reset()
    env.call_tool("write", {"word": "cat"})
    with pytest.raises(ExecutionError):
        env.call_tool("hand_in")
    assert env.trajectory is not None and env.trajectory.terminated
    assert [step.reward for step in env.trajectory.steps] == [Reward(1.0, {"Short": 1.0}), None]
    with pytest.raises(Exception, match="over"):
        env.call_tool("hand_in")


def test_the_log_names_the_rubric_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    env = Desk(WeightedSum({"outer": WeightedSum({"inner": failing()})}))
    env.reset()
    with caplog.at_level(logging.ERROR), pytest.raises(ExecutionError) as raised:
        env.call_tool("write", {"word": "cat"})
    assert raised.value.__cause__ is not None
    assert "in the rubric 'outer/inner'" in raised.value.__cause__.__notes__


# -- composites


def test_a_weighted_sum_has_the_values_of_its_parts_as_components() -> None:
    rubric = WeightedSum({"a": constant(1.0), "b": constant(0.5)}, {"a": 0.2, "b": 2.0})
    observation = step_of(WeightedSum({"all": rubric, "c": constant(Reward(3.0, {"x": 1.0}))}))
    assert observation.reward == 4.2
    assert observation.info["reward"] == {"all": 1.2, "all/a": 1.0, "all/b": 0.5, "c": 3.0, "c/x": 1.0}


def test_weights_in_a_list_go_with_parts_in_a_list() -> None:
    assert step_of(WeightedSum([constant(1.0, "a"), constant(1.0, "b")], [0.25, 0.5])).reward == 0.75


def test_what_a_composite_cannot_be_made_of_is_refused() -> None:
    with pytest.raises(ValueError, match="two parts are named 'constant'"):
        WeightedSum([constant(1.0), constant(2.0)])
    with pytest.raises(ValueError, match="'a/b' has a '/'"):
        WeightedSum({"a/b": constant(1.0)})
    with pytest.raises(ValueError, match="1 parts but 2 weights"):
        WeightedSum([constant(1.0)], [1.0, 2.0])
    with pytest.raises(ValueError, match="only one of them has 'c'"):
        WeightedSum({"a": constant(1.0)}, {"a": 1.0, "c": 2.0})
    with pytest.raises(ValueError, match="no parts"):
        Sequence([])
    with pytest.raises(TypeError, match="'a' is a float"):
        WeightedSum({"a": 1.0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="weight 'a' is nan"):
        WeightedSum({"a": constant(1.0)}, {"a": math.nan})
    with pytest.raises(TypeError, match="needs a function"):
        FunctionRubric()
    with pytest.raises(TypeError):
        New(3)  # type: ignore[call-arg]


def test_a_gate_asks_its_second_part_only_if_the_condition_holds() -> None:
    asked: list[str] = []

    def then(call: ToolCall, outcome: ToolOutcome) -> float:
        asked.append(call.arguments["word"])
        return 0.5

    env = Desk(Gate(Short(), FunctionRubric(then), otherwise=-1.0))
    env.reset()
    assert env.call_tool("write", {"word": "horse"}).reward == -1.0
    passed = env.call_tool("write", {"word": "cat"})
    assert passed.reward == 0.5 and passed.info["reward"] == {"Short": 1.0, "then": 0.5}
    assert asked == ["cat"]


def test_a_gate_without_a_second_part_lets_the_conditions_value_pass() -> None:
    assert step_of(Gate(constant(0.75), threshold=0.5)).reward == 0.75
    assert step_of(Gate(constant(0.25), threshold=0.5)).reward == 0.0
    assert step_of(Gate(constant(0.25), threshold=0.5, otherwise=None)).reward is None


def test_a_gate_opens_where_only_rounding_is_missing() -> None:
    assert step_of(Gate(constant(0.1 + 0.2 - 0.3 + 0.9999999999999), constant(0.5, "then"))).reward == 0.5
    assert step_of(Gate(constant(0.3), constant(0.5, "then"), threshold=0.1 + 0.2)).reward == 0.5
    assert step_of(Gate(constant(0.2999), constant(0.5, "then"), threshold=0.3)).reward == 0.0


def test_a_sequence_asks_in_order_until_one_gives_nothing() -> None:
    asked: list[str] = []

    def part(name: str, value: float | None) -> FunctionRubric:
        def score(call: ToolCall, outcome: ToolOutcome) -> float | None:
            asked.append(name)
            return value

        return FunctionRubric(score, name=name)

    stopped = step_of(Sequence([part("a", 1.0), part("b", None), part("c", 0.0), part("d", 1.0)]))
    assert (stopped.reward, asked) == (0.0, ["a", "b", "c"])
    assert step_of(Sequence([part("a", 1.0), part("d", 0.5), part("e", None)])).reward == 0.5


def test_steps_are_put_together_at_the_end() -> None:
    for how, expected in (("sum", 2.0), ("mean", 2 / 3), ("min", 0.0), ("max", 1.0), ("last", 1.0)):
        env = Desk(OverSteps(Short(), how))  # type: ignore[arg-type]
        env.reset()
        for word in ("cat", "horse", "dog"):
            assert env.call_tool("write", {"word": word}).reward is None
        assert env.call_tool("hand_in").reward == expected
    for how, whole in (("sum", 1.0), ("mean", 0.1)):
        env = Desk(OverSteps(constant(0.1), how))  # type: ignore[arg-type]
        env.reset()
        for _ in range(9):
            env.call_tool("write", {"word": "cat"})
        assert env.call_tool("hand_in").reward == whole  # ten tenths, which a plain sum makes 0.9999999999999999
    with pytest.raises(ValueError, match="how is 'median'"):
        OverSteps(Short(), "median")  # type: ignore[arg-type]


def test_a_condition_on_every_step_can_gate_the_end() -> None:
    env = Desk(Gate(OverSteps(Short(), "min"), Length()))
    for words, expected in ((("cat", "dog"), 2.0), (("cat", "horse"), 0.0)):
        env.reset()
        for word in words:
            env.call_tool("write", {"word": word})
        assert env.call_tool("hand_in").reward == expected


def test_what_comes_late_is_worth_less() -> None:
    env = Desk(Discounted(WeightedSum([constant(1.0), at_end(8.0)]), 0.5))
    env.reset()
    assert env.call_tool("write", {"word": "cat"}).reward == 1.0
    assert env.call_tool("write", {"word": "cat"}).reward == 0.5
    assert env.call_tool("hand_in").reward == 0.25 + 2.0
    sums = Desk(OverSteps(Short(), discount=0.5))
    sums.reset()
    for _ in range(3):
        sums.call_tool("write", {"word": "cat"})
    assert sums.call_tool("hand_in").reward == 1.75
    with pytest.raises(ValueError, match="from 0 to 1"):
        Discounted(Short(), 1.5)


# -- sync and async, threads


def test_sync_and_async_rubrics_mix_for_sync_and_async_tools() -> None:
    env = Desk(WeightedSum([Short(), New(), Length()]))
    env.reset()
    assert env.call_tool("write", {"word": "cat"}).reward == 2.0
    assert env.call_tool("write_later", {"word": "cat"}).reward == 1.0
    assert env.call_tool("write_later", {"word": "horse"}).reward == 1.0
    assert env.call_tool("hand_in").reward == 3.0


def test_a_function_that_gives_an_awaitable_must_be_declared_async() -> None:
    async def later(call: ToolCall, outcome: ToolOutcome) -> float:
        return 1.0

    assert step_of(FunctionRubric(later)).reward == 1.0
    assert step_of(FunctionRubric(functools.partial(later), name="partial")).reward == 1.0
    for rubric in (
        FunctionRubric(lambda call, outcome: later(call, outcome)),
        WeightedSum([New(), FunctionRubric(lambda call, outcome: later(call, outcome))]),
    ):
        env = Desk(rubric)
        env.reset()
        with pytest.raises(ExecutionError) as raised:
            env.call_tool("write", {"word": "cat"})
        assert "declare it `async def`" in str(raised.value.__cause__)


class Where(Rubric):
    """In which thread each of its pieces runs, and whether an event loop runs there."""

    seen: list[tuple[str, bool]] = []  # of the class, because the copies of rubrics are gone with their episodes

    def __init__(self) -> None:
        self.note("init")

    def note(self, what: str) -> None:
        Where.seen.append((what, asyncio._get_running_loop() is not None))

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        self.note("score")
        return 1.0

    def score_trajectory(self, trajectory: Trajectory) -> float:
        self.note("end")
        return 1.0


@pytest.mark.parametrize("rubric", [lambda: Where(), lambda: WeightedSum([Where(), New()])], ids=["sync", "mixed"])
def test_invariant_6_sync_code_of_a_rubric_never_runs_on_the_servers_event_loop(rubric: Callable[[], Rubric]) -> None:
    given = rubric()
    given.add_hook(lambda scored: Where.seen.append(("hook", asyncio._get_running_loop() is not None)))
    Where.seen.clear()
    with serving(functools.partial(Desk, given), ServerConfig()) as url, EnvClient[Any, Any, Any](url).sync() as client:
        client.reset()
        client.call_tool("write_later", {"word": "cat"})
        client.call_tool("write", {"word": "cat"})
        client.call_tool("hand_in")
    assert {what for what, _ in Where.seen} == {"init", "score", "end", "hook"}
    assert not any(on_loop for _, on_loop in Where.seen)


def test_a_thread_affine_environment_has_its_rubric_in_its_thread() -> None:
    class Bound(Desk):
        THREAD_AFFINE = True

        def __init__(self) -> None:
            super().__init__()
            self.thread = threading.get_ident()
            self.rubric = FunctionRubric(
                lambda call, outcome: threading.get_ident() == self.thread,
                lambda trajectory: threading.get_ident() == self.thread,
                name="in_thread",
            )

    with serving(Bound, ServerConfig()) as url, EnvClient[Any, Any, Any](url).sync() as client:
        client.reset()
        assert client.call_tool("write_later", {"word": "cat"}).reward == 1.0
        assert client.call_tool("hand_in").reward == 2.0


# -- whose state it is


def test_state_begins_anew_with_each_episode() -> None:
    env = Desk(WeightedSum([New(), Counting()]))
    for _ in range(2):
        env.reset()
        assert env.call_tool("write", {"word": "cat"}).reward == 2.0
        assert env.call_tool("write", {"word": "cat"}).reward == 2.0


class Shared(Desk):
    rubric = WeightedSum({"inner": WeightedSum([New(), Counting()])})


def test_invariant_5_one_rubric_of_a_class_leaks_no_state_between_sessions() -> None:
    first, second = Shared(), Shared()
    first.reset()
    second.reset()
    for count in (1, 2, 3):
        for env in (first, second):
            reward = env.call_tool("write", {"word": "cat"}).info["reward"]
            assert (reward["inner/New"], reward["inner/Counting"]) == (float(count == 1), count)
    assert isinstance(Shared.rubric.parts["inner"], WeightedSum)
    inner = Shared.rubric.parts["inner"].parts
    assert isinstance(inner["New"], New) and inner["New"].seen == set()
    assert isinstance(inner["Counting"], Counting) and inner["Counting"].asked == 0


ONE_FOR_ALL = New()


def test_parts_that_a_constructor_finds_elsewhere_are_copied_too() -> None:
    class Fixed(WeightedSum):
        def __init__(self) -> None:
            super().__init__([ONE_FOR_ALL, Counting()])

    env = Desk(Fixed())
    for _ in range(2):
        env.reset()
        assert env.call_tool("write", {"word": "cat"}).reward == 2.0
    assert ONE_FOR_ALL.seen == set()


def test_one_object_in_two_places_is_one_in_the_copy_too() -> None:
    counting = Counting()
    made = WeightedSum({"a": counting, "b": counting}).fresh()
    assert made.parts["a"] is made.parts["b"] and made.parts["a"] is not counting


def test_an_attribute_set_outside_an_episode_is_refused() -> None:
    rubric = Short()
    with pytest.raises(Misuse, match=r"Short\.limit is set outside an episode"):
        rubric.limit = 5
    with pytest.raises(Misuse, match="fresh"):
        Counting().score(ToolCall("t", {}, 1), ToolOutcome())
    assert Counting().fresh().score(ToolCall("t", {}, 1), ToolOutcome()) == 1


def test_a_plain_container_that_was_given_is_copied_and_other_objects_are_shared() -> None:
    class Holds(Rubric):
        def __init__(self, plain: dict[str, list[int]], other: object) -> None:
            self.plain, self.other = plain, other

    plain, other = {"a": [1]}, object()
    made = Holds(plain, other=other).fresh()
    made.plain["a"].append(2)
    assert plain == {"a": [1]} and made.other is other


def test_a_rubric_set_in_reset_is_that_episodes() -> None:
    class Tasks(Desk):
        def reset(self, seed: int | None = None, episode_id: str | None = None, good: float | None = None) -> None:
            self.rubric = None if good is None else constant(good)

    env = Tasks()
    for good in (0.5, None, 2.0):
        env.reset(good=good)
        assert env.call_tool("write", {"word": "cat"}).reward == good


def test_a_rubric_that_is_none_is_said_at_the_reset() -> None:
    env = Desk()
    env.rubric = "be good"  # type: ignore[assignment]
    with pytest.raises(ExecutionError) as raised:
        env.reset()
    assert "rubric is a str" in str(raised.value.__cause__)


class Misspelt(Rubric):
    """Was meant to score."""

    def scores(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 1.0


def test_a_rubric_that_overrides_nothing_is_refused_where_it_is_attached() -> None:
    said = "Misspelt never scores: it overrides neither score nor score_trajectory"
    with pytest.raises(TypeError, match=said):

        class Silent(MCPEnvironment):
            rubric = WeightedSum({"a": constant(1.0), "b": Misspelt()})

    env = Desk()
    env.rubric = Misspelt()
    with pytest.raises(ExecutionError) as failed:
        env.reset()
    assert str(failed.value.__cause__) == said


def test_a_rubric_sees_its_environment_and_outside_an_episode_there_is_none() -> None:
    env = Desk(Length())
    env.reset()
    env.call_tool("write", {"word": "cat"})
    assert env.call_tool("hand_in").reward == 1.0
    with pytest.raises(Misuse, match="only in an episode"):
        Length().env


def test_finish_works_in_a_rubric_that_scores_a_step() -> None:
    class Stops(Rubric):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            self.env.finish(1.0, reason="enough")
            return 0.5

    observation = step_of(Stops())
    assert observation.terminated and observation.reward == 1.5 and observation.info["reason"] == "enough"


# -- hooks


def test_hooks_are_told_of_every_rubric_that_was_asked() -> None:
    told: list[Scored] = []
    later: list[Scored] = []

    async def hook(scored: Scored) -> None:
        later.append(scored)

    short, rubric = Short(), WeightedSum({"short": Short(), "broken": Gate(Short(4), failing())})
    rubric.add_hook(told.append)
    rubric.parts["short"].add_hook(hook)
    short.add_hook(told.append)
    env = Desk(rubric)
    env.reset()
    assert env.call_tool("write", {"word": "horse"}).reward == 0.0
    with pytest.raises(ExecutionError):
        env.call_tool("write", {"word": "cat"})
    assert [(scored.name, scored.reward and scored.reward.value) for scored in told] == [("", 0.0), ("", None)]
    assert [scored.call and scored.call.step for scored in told] == [1, 2] and told[0].trajectory is None
    assert told[0].error is None and isinstance(told[1].error, RuntimeError)
    assert told[0].reward == Reward(0.0, {"short": 0.0, "broken": 0.0, "broken/Short": 0.0})
    assert [scored.name for scored in later] == ["short", "short"]


def test_hooks_are_told_of_the_end() -> None:
    told: list[Scored] = []
    rubric = Length()
    rubric.add_hook(told.append)
    env = Desk(rubric)
    env.reset()
    env.call_tool("hand_in")
    assert [(scored.name, scored.trajectory is None) for scored in told] == [("length", False)]


def test_a_hook_that_a_constructor_adds_belongs_to_the_copy() -> None:
    class Logs(Rubric):
        def __init__(self) -> None:
            self.told: list[Scored] = []
            self.add_hook(self.told.append)

    template = Logs()
    made = template.fresh()
    assert [hook.__self__ for hook in made._hooks] == [made.told]  # type: ignore[attr-defined]
    assert made.told is not template.told


def test_a_hook_that_raises_fails_the_step() -> None:
    rubric = Short()
    rubric.add_hook(lambda scored: 1 / 0)
    env = Desk(rubric)
    env.reset()
    with pytest.raises(ExecutionError):
        env.call_tool("write", {"word": "cat"})


# -- configuration


def tidy(call: ToolCall, outcome: ToolOutcome) -> float:
    """A function that a configuration can name."""
    return 0.25


def test_a_rubric_is_saved_and_loaded_with_all_that_it_was_given() -> None:
    rubric = WeightedSum(
        {
            "short": Gate(Short(limit=4), FunctionRubric(tidy), threshold=0.5),
            "over": OverSteps(Short().called("brief"), "mean", discount=0.5),
            "order": Sequence([Short(5), Discounted(FunctionRubric(tidy), 0.9)]),
        },
        weights={"short": 2.0, "over": 1.0, "order": 1},
    )
    config = json.loads(json.dumps(rubric.to_config()))
    assert config["arguments"]["parts"]["short"] == {
        "rubric": "Gate",
        "arguments": {
            "condition": {"rubric": "Short", "arguments": {"limit": 4}},
            "then": {"rubric": "FunctionRubric", "arguments": {"score": {"function": "tidy"}}},
            "threshold": 0.5,
        },
    }
    loaded = rubric_from_config(config, known=[Short, tidy])
    assert loaded.to_config() == config
    one, other = step_of(rubric), step_of(loaded)
    assert one.reward == other.reward == 0.5 + 0.25 and one.info["reward"] == other.info["reward"]


def test_arguments_of_every_kind_come_back() -> None:
    class Many(Rubric):
        def __init__(self, first: int, /, *rest: int, plain: Any = None, **more: int) -> None:
            self.all = (first, rest, plain, more)

    config = Many(1, 2, 3, plain={"a": [None, True]}, x=4).to_config()
    loaded = rubric_from_config(json.loads(json.dumps(config)), known=[Many])
    assert isinstance(loaded, Many) and loaded.all == (1, (2, 3), {"a": [None, True]}, {"x": 4})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"rubric": "Nope"}, "rubric: there is no rubric 'Nope'; known: .*WeightedSum"),
        ({"rubric": "tidy"}, "there is no rubric 'tidy'"),
        (
            {"rubric": "WeightedSum", "arguments": {"parts": {"a": {"rubric": "Gate2"}}}},
            r"rubric\.parts\.a: there is no rubric 'Gate2'",
        ),
        ({"rubric": "Short", "arguments": {"length": 3}}, "Short: .*'length'"),
        ({"rubric": "Short", "weight": 3}, "unknown fields: weight"),
        ({"rubric": "Short", "arguments": [3]}, "'arguments' must be an object"),
        ({"rubric": "Short", "name": 3}, "'name' must be text"),
        ({"rubric": "FunctionRubric", "arguments": {"score": {"function": "os.system"}}}, "no function 'os.system'"),
        ({"rubric": "FunctionRubric", "arguments": {"score": {"function": "Short"}}}, "no function 'Short'"),
        ({"rubric": "WeightedSum", "arguments": {"parts": []}}, "no parts"),
        ({"arguments": {}}, "it must be an object with the name of a class"),
        ("Short", "it must be an object with the name of a class"),
    ],
)
def test_a_configuration_that_cannot_be_loaded_says_what_is_wrong(config: Any, said: str) -> None:
    with pytest.raises(InvalidRubric, match=said):
        rubric_from_config(config, known=[Short, tidy])


def test_a_rubric_of_the_verification_is_loaded_without_naming_it() -> None:
    config = WeightedSum({"solved": Verified()}, {"solved": 2.0}).to_config()
    assert rubric_from_config(json.loads(json.dumps(config))).to_config() == config


def test_a_class_in_the_place_of_a_rubric_is_refused_by_its_name() -> None:
    env = Desk(Verified)  # type: ignore[arg-type]
    with pytest.raises(ExecutionError) as refused:
        env.reset()
    assert str(refused.value.__cause__) == "Desk.rubric is the class Verified. Make it an instance: Verified()"


def test_two_known_classes_of_one_name_are_refused() -> None:
    class Gate(Rubric):
        pass

    with pytest.raises(InvalidRubric, match="Gate: two classes"):
        rubric_from_config({"rubric": "Gate"}, known=[Gate])


def test_what_has_no_plain_form_is_not_saved() -> None:
    class Takes(Rubric):
        def __init__(self, value: object) -> None:
            self.value = value

    for value in (object(), {"rubric": 1}, lambda: None, [math.nan]):
        with pytest.raises(NotSerializable, match=r"Takes\.value"):
            Takes(value).to_config()


# -- groups


def episode(*rewards: float | None) -> Trajectory:
    steps = [
        StepRecord(ToolCall("t", {}, n), ToolOutcome(), None if r is None else Reward(r)) for n, r in enumerate(rewards)
    ]
    return Trajectory("e", steps=steps, total_reward=sum(r for r in rewards if r is not None))


def test_an_episode_that_was_not_scored_has_no_score() -> None:
    assert score_of(episode(None, None)) is None
    assert score_of(episode()) is None
    assert score_of(episode(None, 0.0)) == 0.0
    assert score_of(episode(1.0, -1.0)) == 0.0


def test_invariant_5_an_episode_in_which_scoring_failed_has_no_score() -> None:
    env = Desk(WeightedSum([Short(), FunctionRubric(score_trajectory=lambda t: 1 / 0, name="broken")]))
    env.reset()
    env.call_tool("write", {"word": "cat"})
    assert env.trajectory is not None and score_of(env.trajectory) == 1.0
    with pytest.raises(ExecutionError):
        env.call_tool("hand_in")
    assert [step.fault for step in env.trajectory.steps] == [None, "EXECUTION_ERROR"]
    read = Trajectory.from_plain(env.trajectory.to_plain())
    assert score_of(read) is None and advantages([read, episode(1.0), episode(2.0)])[0] is None
    env.reset()
    env.call_tool("nope", {"word": "cat"})
    assert env.trajectory.steps[0].outcome.error is not None and env.trajectory.steps[0].fault is None


def test_advantages_compare_an_episode_with_its_group() -> None:
    group = [episode(1.0), episode(None), episode(2.0), episode(1.0, 2.0)]
    root = math.sqrt(2 / 3)
    assert advantages(group) == pytest.approx([-1 / root, None, 0.0, 1 / root])
    assert advantages(group, scale=False) == [-1.0, None, 0.0, 1.0]
    assert advantages(group, baseline="leave_one_out", scale=False) == [-1.5, None, 0.0, 1.5]
    with pytest.raises(ValueError, match="baseline is 'median'"):
        advantages(group, baseline="median")  # type: ignore[arg-type]


def test_equal_episodes_and_a_single_one_have_no_advantage() -> None:
    assert advantages([episode(0.1)] * 3) == [0.0, 0.0, 0.0]
    assert advantages([episode(5.0), episode(None)]) == [0.0, None]
    assert advantages([]) == []


def test_ranks_share_places_among_equals() -> None:
    group = [episode(1.0), episode(3.0), episode(None), episode(1.0), episode(-2.0)]
    assert ranks(group) == [2.5, 1.0, None, 2.5, 4.0]


def test_discounted_returns_are_what_follows_each_step() -> None:
    assert discounted_returns(episode(1.0, None, 4.0), 0.5) == [2.0, 2.0, 4.0]
    assert discounted_returns(episode(1.0, None, 4.0)) == [5.0, 4.0, 4.0]
    cut = episode(1.0)
    cut.dropped = 1
    with pytest.raises(ValueError, match="steps of the episode were dropped"):
        discounted_returns(cut)


# -- agents


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_invariant_5_an_agents_calls_are_scored_by_the_rubric_and_it_sees_no_reward(era: Any) -> None:
    async def play(mcp_url: str) -> list[str]:
        async with Client(mcp_url, mode=era) as agent:
            results = [
                await agent.call_tool(name, arguments)
                for name, arguments in (("write", {"word": "cat"}), ("write_later", {"word": "cat"}), ("hand_in", {}))
            ]
        return [str(result.model_dump() if hasattr(result, "model_dump") else vars(result)) for result in results]

    rubric = WeightedSum({"short_word": Short(), "new_word": New(), "length": Length()})
    with (
        serving(functools.partial(Desk, rubric), ServerConfig()) as url,
        EnvClient[Any, Any, Any](url).sync() as client,
    ):
        seen = asyncio.run(play(client.reset().info["mcp_url"]))
        final = client.wait(30)
        record = client.trajectory()
    assert final.reward == 2.0 and final.info["reward"] == {"length": 2.0, "length/steps": 3.0}
    assert final.info["return"] == 5.0
    assert [step.reward.components if step.reward else None for step in record.steps] == [
        {"short_word": 1.0, "new_word": 1.0},
        {"short_word": 1.0, "new_word": 0.0},
        {"length": 2.0, "length/steps": 3.0},
    ]
    assert len(seen) == 3 and not any("short_word" in text or "length/steps" in text for text in seen)


# -- ends that come together, or never


def test_the_end_is_asked_about_once_where_two_calls_end_the_episode_together() -> None:
    class Pair(MCPEnvironment):
        """Two calls that wait for each other, and both end the episode."""

        rubric = at_end(5.0)

        def __init__(self) -> None:
            self.there = 0
            self.both = asyncio.Event()

            @self.tool(terminal=True, concurrent=True)
            async def meet() -> None:
                """Wait for the other call."""
                self.there += 1
                if self.there == 2:
                    self.both.set()
                await self.both.wait()

    async def play() -> list[float | None]:
        env = Pair()
        await env.reset_async()
        records = await asyncio.gather(*(env.step_async(CallToolAction(tool_name="meet")) for _ in range(2)))
        assert env.trajectory is not None and env.trajectory.total_reward == 5.0
        return [record.reward for record in records]

    assert sorted(asyncio.run(play()), key=str) == [5.0, None]


def test_no_rubric_is_asked_beside_a_tool_that_could_not_be_stopped() -> None:
    release, asked = threading.Event(), []

    class Stuck(MCPEnvironment):
        """An environment with a tool that cannot be stopped."""

        rubric = FunctionRubric(lambda call, outcome: asked.append("step"), lambda t: asked.append("end"), name="asked")

        def __init__(self) -> None:
            @self.tool(timeout_s=0.05)
            def hang() -> None:
                """Wait for the test."""
                release.wait(30)

    env = Stuck()
    env.reset()
    try:
        observation = env.call_tool("hang")
        assert observation.truncated and observation.reward is None and asked == []
    finally:
        release.set()


class Waits(Rubric):
    """Waits for ever at the end of an episode; says when it does."""

    def __init__(self, waiting: threading.Event) -> None:
        self.waiting = waiting

    async def score_trajectory(self, trajectory: Trajectory) -> None:
        self.waiting.set()
        await asyncio.Event().wait()


def test_a_rubric_that_passes_the_deadline_fails_the_step() -> None:
    factory = functools.partial(Desk, WeightedSum([Short(), Waits(threading.Event())]))
    with (
        serving(factory, ServerConfig(step_timeout_s=0.2)) as url,
        EnvClient[Any, Any, Any](url).sync() as client,
    ):
        client.reset()
        assert client.call_tool("write", {"word": "cat"}).reward == 1.0
        with pytest.raises(OperationTimeout):
            client.call_tool("hand_in")
        trajectory = client.trajectory()
        assert trajectory.terminated and [step.fault for step in trajectory.steps] == [None, "TIMEOUT"]
        assert score_of(trajectory) is None
        client.reset()
        assert client.call_tool("write", {"word": "cat"}).reward == 1.0


def test_a_sync_rubric_that_cannot_be_stopped_truncates_the_episode() -> None:
    release = threading.Event()

    def hang(call: ToolCall, outcome: ToolOutcome) -> None:
        release.wait(30)

    with (
        serving(functools.partial(Desk, FunctionRubric(hang)), ServerConfig(step_timeout_s=0.2)) as url,
        EnvClient[Any, Any, Any](url).sync() as client,
    ):
        client.reset()
        try:
            with pytest.raises(OperationTimeout):
                client.call_tool("write_later", {"word": "cat"})
            trajectory = client.trajectory()
            assert trajectory.truncated and trajectory.steps[0].fault == "TIMEOUT"
        finally:
            release.set()


def test_an_end_whose_scoring_was_cancelled_has_no_score() -> None:
    async def play() -> Trajectory:
        waiting = threading.Event()
        env = Desk(WeightedSum([Short(), Waits(waiting)]))
        await env.reset_async()
        await env.step_async(CallToolAction(tool_name="write", arguments={"word": "cat"}))
        step = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="hand_in")))
        while not waiting.is_set():
            await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert env.trajectory is not None
        return env.trajectory

    trajectory = asyncio.run(play())
    assert trajectory.terminated and trajectory.steps[-1].fault == "CANCELLED" and score_of(trajectory) is None


def test_a_rubric_of_a_class_holds_no_environment_that_was_closed() -> None:
    env = Shared()
    env.reset()
    env.call_tool("write", {"word": "cat"})
    gone = weakref.ref(env)
    env.close()
    del env
    gc.collect()
    assert gone() is None
