from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from environments import CounterEnvironment
from fastmcp import Client

from mcpenv import (
    Action,
    CallToolAction,
    CallToolObservation,
    EpisodeDone,
    ExecutionError,
    InvalidTool,
    ListToolsAction,
    ListToolsObservation,
    MCPEnvironment,
    Misuse,
    Mode,
    Observation,
    Reward,
    State,
    ToolCall,
    ToolOutcome,
)
from mcpenv.execution.concurrency.threads import THREADS
from mcpenv_client import InvalidMessage, OperationTimeout, Plane, SessionLost, ToolErrorType


class Plain(MCPEnvironment):
    """The environment with nothing but tools."""

    def __init__(self) -> None:
        @self.tool
        def say(text: str = "hello") -> str:
            """Say something."""
            return text

        @self.tool
        async def say_later(text: str = "hello") -> str:
            """Say something, later."""
            await asyncio.sleep(0)
            return text


# -- reset


def test_a_reset_opens_an_episode_with_a_new_id_and_count_0() -> None:
    env = CounterEnvironment()
    first = env.reset()
    env.call_tool("add")
    second = env.reset()
    assert first.info["episode_id"] and first.info["episode_id"] != second.info["episode_id"]
    assert env.episode_id == second.info["episode_id"]
    assert env.step_count == 0 and env.count == 0
    assert second.metadata == {"target": 3} and second.reward is None and not second.done


def test_a_reset_without_a_body_gives_an_observation() -> None:
    observation = Plain().reset(seed=3, episode_id="mine")
    assert type(observation) is Observation and observation.info == {"episode_id": "mine"}


def test_seed_and_episode_id_reach_the_body_only_where_it_takes_them() -> None:
    class Bare(Plain):
        def reset(self) -> Any:  # type: ignore[override]
            self.seen = "called"

    class Seeded(Plain):
        def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
            self.seen = seed

    class Any_(Plain):
        def reset(self, **options: Any) -> Any:  # type: ignore[override]
            self.seen = options

    bare, seeded, takes_any = Bare(), Seeded(), Any_()
    every: tuple[MCPEnvironment, ...] = (bare, seeded, takes_any)
    for env in every:
        assert env.reset(7, "ep").info["episode_id"] == "ep"
    assert (bare.seen, seeded.seen, takes_any.seen) == ("called", 7, {"seed": 7, "episode_id": "ep"})


def test_unknown_and_missing_reset_options_are_refused_before_anything_happens() -> None:
    class Levelled(Plain):
        def reset(self, *, level: int, hard: bool = False) -> Any:  # type: ignore[override]
            self.level = level

    env = Levelled()
    env.reset(level=1)
    episode = env.episode_id
    with pytest.raises(InvalidMessage) as unknown:
        env.reset(level=2, colour="red")  # type: ignore[call-arg]
    assert unknown.value.errors[0]["loc"] == ["colour"]
    with pytest.raises(InvalidMessage) as missing:
        env.reset()  # type: ignore[call-arg]
    assert missing.value.errors[0] == {"loc": ["level"], "msg": "Field required", "type": "missing"}
    assert (env.episode_id, env.level) == (episode, 1)
    env.reset(level=2, hard=True)
    assert env.level == 2
    assert env.trajectory is not None and env.trajectory.options == {"level": 2, "hard": True}


def test_an_environment_that_takes_any_option_refuses_none() -> None:
    class Open(Plain):
        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
            return Observation(metadata=options)

    assert Open().reset(colour="red", size=3).metadata == {"colour": "red", "size": 3}


def test_an_async_reset_is_awaited_by_the_blocking_call_too() -> None:
    class Slow(Plain):
        async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            await asyncio.sleep(0)
            return Observation(metadata={"seed": seed})

    env: MCPEnvironment = Slow()
    assert env.reset(4).metadata == {"seed": 4}
    assert asyncio.run(Slow().reset_async(5)).metadata == {"seed": 5}


def test_super_reset_is_optional_and_harmless() -> None:
    class Base(Plain):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
            super().reset(seed=seed, episode_id=episode_id)
            self.resets = getattr(self, "resets", 0) + 1
            return Observation(metadata={"base": seed})

    class Derived(Base):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
            below = super().reset(seed=seed)
            assert isinstance(below, Observation)
            return Observation(metadata={"derived": below.metadata})

    class Async(Plain):
        async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            await super().reset(seed=seed)

    env = Derived()
    observation = env.reset(9)
    assert observation.metadata == {"derived": {"base": 9}} and env.resets == 1
    assert observation.info["episode_id"] == env.episode_id
    other: MCPEnvironment = Async()
    assert other.reset(1).info["episode_id"]


def test_a_reset_that_raises_leaves_the_environment_new() -> None:
    class Broken(Plain):
        broken = True

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            if self.broken:
                raise KeyError("secret")

    env = Broken()
    with pytest.raises(ExecutionError) as raised:
        env.reset()
    assert isinstance(raised.value.__cause__, KeyError)
    assert "secret" not in str(raised.value) and raised.value.incident is not None
    env.broken = False
    assert env.call_tool("say").info["reset"] == "implicit"


def test_a_reset_may_end_the_episode_at_once() -> None:
    class Over(Plain):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
            return Observation.model_validate({"done": True, "reward": 1})

    class Finished(Plain):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            self.finish(0.25, truncated=True, reason="nothing to do")

    over, finished = Over(), Finished()
    assert over.reset().terminated
    observation = finished.reset()
    assert observation.truncated and not observation.terminated and observation.reward == 0.25
    for env in (over, finished):
        with pytest.raises(EpisodeDone):
            env.call_tool("say")
    assert finished.trajectory is not None and finished.trajectory.reason == "nothing to do"


def test_a_first_step_resets_with_defaults_and_says_so_once() -> None:
    env = CounterEnvironment()
    env.count = 50
    first, second = env.call_tool("add"), env.call_tool("add")
    assert isinstance(first, CallToolObservation) and first.result is not None and first.result.data == 1
    assert first.info["reset"] == "implicit" and "reset" not in second.info
    assert first.info["episode_id"] == env.episode_id
    assert env.trajectory is not None and env.trajectory.implicit_reset


def test_an_environment_whose_reset_needs_options_is_not_reset_by_a_step() -> None:
    class Levelled(Plain):
        def reset(self, *, level: int) -> Any:  # type: ignore[override]
            return None

    env = Levelled()
    with pytest.raises(InvalidMessage):
        env.call_tool("say")
    env.reset(level=1)
    assert env.call_tool("say").text == "hello"


# -- steps


def test_every_call_is_a_step_whatever_comes_of_it() -> None:
    scored: list[tuple[int, str, str | None]] = []

    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()

            @self.tool
            def fail() -> str:
                """Fail."""
                raise RuntimeError

            @self.tool(timeout_s=0.01)
            async def slow() -> str:
                """Take too long."""
                await asyncio.Event().wait()
                return ""

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            scored.append((call.step, call.name, outcome.error.error_type.value if outcome.error else None))
            return 1.0

    env = Env()
    env.reset()
    env.call_tool("say", {"text": "x"})
    env.call_tool("say", {"text": 3})
    env.call_tool("nonsense")
    env.call_tool("fail")
    env.call_tool("slow")
    assert scored == [
        (1, "say", None),
        (2, "say", "invalid_args"),
        (3, "nonsense", "tool_not_found"),
        (4, "fail", "execution_error"),
        (5, "slow", "timeout"),
    ]
    assert env.step_count == 5 and env.state.step_count == 5
    assert env.trajectory is not None and env.trajectory.total_reward == 5.0


def test_listing_is_no_step_and_is_allowed_in_any_state() -> None:
    env = CounterEnvironment(target=1)
    before = env.step(ListToolsAction())
    assert isinstance(before, ListToolsObservation) and before.reward is None and not before.done
    assert [tool.name for tool in before.tools] == ["add", "add_sync"]
    assert env.episode_id is None and env.step_count == 0
    assert env.call_tool("add").done
    after = env.step(ListToolsAction())
    assert isinstance(after, ListToolsObservation) and after.tools == before.tools
    assert env.list_tools() == before.tools
    assert env.step_count == 1


def test_what_is_no_action_is_a_type_error() -> None:
    env = Plain()
    for wrong in ({"type": "call_tool", "tool_name": "say"}, "say", Action()):
        with pytest.raises(TypeError, match=r"takes no \w+ as an action"):
            env.step(wrong)  # type: ignore[arg-type]


def test_the_arguments_in_the_record_are_those_that_were_sent() -> None:
    env = CounterEnvironment()
    env.call_tool("add", {"by": "2"})
    assert env.trajectory is not None
    (step,) = env.trajectory.steps
    assert step.call == ToolCall("add", {"by": "2"}, 1, Plane.PROCESS)
    assert step.outcome.value == 2 and step.reward == Reward(2.0) and not step.done
    assert step.started_at > 0 and step.outcome.duration_s >= 0


def test_invariant_1_every_way_to_step_goes_through_one_core() -> None:
    env = CounterEnvironment(target=100)

    async def all_ways() -> None:
        await env.step_async(CallToolAction(tool_name="add"))
        async with Client(env.mcp) as client:
            await client.call_tool("add", {"by": 1})
            await client.call_tool("add_sync", {"by": "x"}, raise_on_error=False)

    env.reset()
    env.step(CallToolAction(tool_name="add"))
    env.call_tool("add_sync")
    asyncio.run(all_ways())
    assert env.trajectory is not None
    records = [(step.call.step, step.call.plane.value, step.reward) for step in env.trajectory.steps]
    assert records == [
        (1, "process", Reward(1.0)),
        (2, "process", Reward(2.0)),
        (3, "process", Reward(3.0)),
        (4, "agent", Reward(4.0)),
        (5, "agent", None),
    ]


def test_old_records_are_dropped_and_counted() -> None:
    env = CounterEnvironment(target=100)
    env.max_kept_steps = 2
    for _ in range(5):
        env.call_tool("add")
    assert env.trajectory is not None
    assert [step.call.step for step in env.trajectory.steps] == [4, 5]
    assert env.trajectory.dropped == 3 and env.trajectory.total_reward == 15.0


def test_of_many_records_several_old_ones_are_dropped_at_once() -> None:
    env = CounterEnvironment(target=1_000)
    env.max_kept_steps = 128
    env.reset()
    trajectory, held = env.trajectory, []
    assert trajectory is not None
    for _ in range(134):
        env.call_tool("add")
        held.append((trajectory.steps[0].call.step, len(trajectory.steps), trajectory.dropped))
    assert held[127:] == [(1, 128, 0), (1, 129, 0), (1, 130, 0), (4, 128, 3), (4, 129, 3), (4, 130, 3), (7, 128, 6)]
    env.max_kept_steps = 10
    env.call_tool("add")
    assert [step.call.step for step in trajectory.steps] == [*range(126, 136)] and trajectory.dropped == 125


# -- the end


def test_finish_in_score_ends_the_episode_with_the_step_under_way() -> None:
    env = CounterEnvironment(target=2)
    assert not env.call_tool("add").done
    last = env.call_tool("add")
    assert last.terminated and not last.truncated and last.reward == 2.0
    assert last.info["reason"] == "target" and last.info["return"] == 3.0
    with pytest.raises(EpisodeDone):
        env.call_tool("add")
    assert env.count == 2 and env.step_count == 2
    assert env.trajectory is not None and env.trajectory.terminated and env.trajectory.ended_at is not None
    env.reset()
    assert not env.call_tool("add").done


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_first_finish_of_a_step_counts_and_the_step_is_still_scored(kind: str) -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            def ends() -> str:
                """End it, twice."""
                self.finish(0.5, truncated=True, reason="first")
                self.finish(100, reason="second")
                return "ended"

            async def ends_later() -> str:
                """End it, twice."""
                await asyncio.sleep(0)
                return ends()

            self.tool(ends if kind == "sync" else ends_later, name="ends")

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            self.finish(100, reason="third")
            return 2.0

    env = Env()
    env.reset()
    observation = env.call_tool("ends")
    assert observation.text == "ended" and observation.reward == 2.5
    assert observation.truncated and not observation.terminated and observation.info["reason"] == "first"


def test_a_step_that_ends_the_episode_and_fails_ends_it() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def crash() -> str:
                """Crash."""
                self.finish(-1.0)
                raise RuntimeError

    env = Env()
    observation = env.call_tool("crash")
    assert observation.terminated and observation.reward == -1.0
    assert observation.error is not None and observation.error.error_type is ToolErrorType.EXECUTION_ERROR


def test_a_terminal_tool_ends_the_episode_only_when_it_returned() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool(terminal=True)
            def submit(answer: str) -> str:
                """Submit the answer."""
                if not answer:
                    raise ValueError
                return "thanks"

    env = Env()
    assert not env.call_tool("submit", {}).done
    assert not env.call_tool("submit", {"answer": ""}).done
    assert env.call_tool("submit", {"answer": "42"}).terminated


def test_max_steps_truncates_unless_the_step_terminates() -> None:
    env = CounterEnvironment(target=100)
    env.max_steps = 2
    assert not env.call_tool("add").done
    last = env.call_tool("nonsense")
    assert last.truncated and not last.terminated and last.info["reason"] == "max_steps"
    env.reset()
    env.target = 1
    env.call_tool("nonsense")
    both = env.call_tool("add")
    assert both.terminated and not both.truncated


@pytest.mark.parametrize("where", ["constructor", "after a step", "another environment"])
def test_finish_outside_a_step_is_misuse(where: str) -> None:
    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()
            if where == "constructor":
                self.finish()

    with pytest.raises(Misuse):
        env = Env()
        env.call_tool("say")
        if where == "after a step":
            env.finish()
        other = Plain()

        class Meddler(MCPEnvironment):
            def __init__(self) -> None:
                @self.tool
                def meddle() -> str:
                    """End another environment's episode."""
                    with pytest.raises(Misuse):
                        other.finish()
                    raise AssertionError

        assert not Meddler().call_tool("meddle").done
        raise Misuse


# -- rewards


@pytest.mark.parametrize(
    ("given", "value"), [(None, None), (True, 1.0), (3, 3.0), (0.0, 0.0), (Reward(1, {"a": 1}), 1.0)], ids=str
)
@pytest.mark.parametrize("scoring", ["sync", "async"])
@pytest.mark.parametrize("tool", ["say", "say_later"])
def test_invariant_5_a_score_becomes_a_float_or_none(given: Any, value: float | None, scoring: str, tool: str) -> None:
    class Sync(Plain):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
            return given

    class Async(Plain):
        async def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
            await asyncio.sleep(0)
            return given

    env: MCPEnvironment = Sync() if scoring == "sync" else Async()
    env.reset()
    observation = env.call_tool(tool)
    assert observation.reward == value and type(observation.reward) is type(value)
    if isinstance(given, Reward):
        assert observation.info["reward"] == {"a": 1.0}


def test_invariant_5_not_scored_is_none_and_not_zero() -> None:
    env = Plain()
    env.reset()
    observation = env.call_tool("say")
    assert observation.reward is None and observation.info["return"] is None
    assert env.end().info["return"] is None


def test_invariant_5_a_return_of_zero_is_one_that_was_scored_also_after_going_back() -> None:
    class Free(MCPEnvironment):
        """Pays nothing for a word, and says nothing of the rest."""

        def __init__(self) -> None:
            @self.tool
            def say() -> str:
                return "said"

            @self.tool
            def think() -> str:
                return "thought"

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
            return 0.0 if call.name == "say" else None

    env = Free()
    env.reset()
    assert env.call_tool("think").info["return"] is None
    unscored = env.snapshot()
    assert env.call_tool("say").info["return"] == 0.0
    scored = env.snapshot()
    assert env.call_tool("think").info["return"] == 0.0
    env.restore(unscored)
    assert env.call_tool("think").info["return"] is None
    env.restore(scored)
    assert env.call_tool("think").info["return"] == 0.0
    env.reset()
    assert env.call_tool("think").info["return"] is None


def test_components_of_score_and_finish_add_up_by_name() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def win() -> str:
                """Win."""
                self.finish(Reward(1.0, {"win": 1.0, "style": 0.5}))
                return ""

        def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
            return Reward(0.25, {"style": 0.25})

    observation = Env().call_tool("win")
    assert observation.reward == 1.25 and observation.info["reward"] == {"win": 1.0, "style": 0.75}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", Reward], ids=str)
@pytest.mark.parametrize("tool", ["say", "say_later"])
def test_a_score_that_is_no_finite_number_fails_the_step_loudly(wrong: Any, tool: str) -> None:
    class Env(Plain):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
            return wrong

    env = Env()
    env.reset()
    with pytest.raises(ExecutionError) as raised:
        env.call_tool(tool)
    assert isinstance(raised.value.__cause__, (TypeError, ValueError))
    assert env.trajectory is not None and env.trajectory.steps[0].reward is None and env.step_count == 1


@pytest.mark.parametrize("tool", ["say", "say_later"])
def test_a_score_that_is_async_behind_a_decorator_is_awaited(tool: str) -> None:
    def decorated(fn: Any) -> Any:
        return lambda *args: fn(*args)

    class Env(Plain):
        @decorated
        async def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            await asyncio.sleep(0)
            return 0.5

    env = Env()
    env.reset()
    assert env.call_tool(tool).reward == 0.5


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_finish_with_a_reward_that_is_no_finite_number_fails_the_step_loudly(kind: str) -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            def ends() -> str:
                """End it, and hide what went wrong."""
                try:
                    self.finish(float("nan"))
                except ExecutionError:
                    return "fine"
                return "finer"

            async def ends_later() -> str:
                """End it."""
                return ends()

            self.tool(ends if kind == "sync" else ends_later, name="ends")

    env = Env()
    env.reset()
    with pytest.raises(ExecutionError):
        env.call_tool("ends")


def test_scores_see_the_call_and_what_the_tool_returned() -> None:
    seen: list[tuple[ToolCall, Any, Any]] = []

    class Env(Plain):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> None:
            seen.append((call, outcome.value, outcome.result.data if outcome.result else None))

    env = Env()
    env.reset()
    env.call_tool("say", {"text": "a"})
    env.call_tool("say_later", {"text": "b"})
    assert seen == [(ToolCall("say", {"text": "a"}, 1), "a", "a"), (ToolCall("say_later", {"text": "b"}, 2), "b", "b")]


# -- own actions


class Move(Action):
    type: Literal["move"] = "move"
    by: int


class Moved(Observation):
    position: int


class Board(MCPEnvironment):
    """Moves that are no tools."""

    action_types = (Move,)
    observation_type = Moved

    def __init__(self) -> None:
        self.position = 0

    def act(self, action: Action) -> Any:
        assert isinstance(action, Move)
        self.position += action.by
        if self.position > 5:
            self.finish(1.0)
        return Moved(position=self.position, reward=0.5, metadata={"seen": True})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        assert isinstance(outcome.value, Moved)
        return 0.25


def test_own_actions_go_to_act_and_are_steps() -> None:
    board = Board()
    first = board.step(Move(by=2))
    assert isinstance(first, Moved) and first.position == 2 and first.metadata == {"seen": True}
    assert first.reward == 0.75 and first.info["reset"] == "implicit" and not first.done
    last = board.step(Move(by=4))
    assert last.reward == 1.75 and last.terminated
    assert board.trajectory is not None
    assert [step.call for step in board.trajectory.steps] == [
        ToolCall("move", {"by": 2}, 1),
        ToolCall("move", {"by": 4}, 2),
    ]
    with pytest.raises(EpisodeDone):
        board.step(Move(by=1))


def test_an_own_action_may_say_done_itself_and_may_be_async() -> None:
    class Async(Board):
        async def act(self, action: Action) -> Moved:
            await asyncio.sleep(0)
            return Moved(position=1, truncated=True)

    last = Async().step(Move(by=1))
    assert last.truncated and not last.terminated and last.reward == 0.25


@pytest.mark.parametrize("wrong", ["raises", "returns"])
def test_an_own_action_that_fails_is_an_error_of_the_environment(wrong: str) -> None:
    class Broken(Board):
        def act(self, action: Action) -> Any:
            if wrong == "raises":
                raise OSError("disk")
            return {"position": 1}

    env = Broken()
    env.reset()
    with pytest.raises(ExecutionError):
        env.step(Move(by=1))
    assert env.step_count == 1
    assert env.trajectory is not None and env.trajectory.steps[0].outcome.error is not None


def test_an_own_action_past_its_deadline_is_an_error() -> None:
    class Slow(Board):
        async def act(self, action: Action) -> Any:
            await asyncio.Event().wait()

    env = Slow()
    env.reset()
    with pytest.raises(OperationTimeout):
        env.step(Move(by=1), timeout_s=0.01)


def test_two_action_classes_of_one_type_are_refused_when_the_class_is_made() -> None:
    class Again(Action):
        type: Literal["move"] = "move"

    with pytest.raises(TypeError, match="two action classes with type 'move'"):
        type("Clash", (MCPEnvironment,), {"action_types": (Move, Again)})


# -- state


def test_a_state_leaves_episode_and_step_count_to_the_framework() -> None:
    class Position(State):
        position: int = 0

    class Env(Plain):
        state_type = Position

        @property
        def state(self) -> Position:
            return Position(position=4)

    class Own(Plain):
        @property
        def state(self) -> State:
            return State(episode_id="own", step_count=17)

    env, own = Env(), Own()
    assert env.state == Position(position=4)
    env.reset(episode_id="ep")
    env.call_tool("say")
    assert env.state == Position(episode_id="ep", step_count=1, done=False, position=4) and type(env.state) is Position
    own.reset()
    assert (own.state.episode_id, own.state.step_count) == ("own", 17)


def test_the_default_state_has_the_episode_and_the_step_count() -> None:
    env = Plain()
    assert env.state == State()
    env.reset(episode_id="ep")
    env.call_tool("nonsense")
    assert env.state == State(episode_id="ep", step_count=1, done=False)


def test_a_state_that_is_none_is_an_error() -> None:
    class Env(Plain):
        @property
        def state(self) -> Any:
            return {"position": 4}

    with pytest.raises(TypeError, match="state is a dict; return a State"):
        _ = Env().state


# -- close


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_close_runs_once_and_is_the_end_of_everything(kind: str) -> None:
    closed: list[str] = []

    class Sync(Plain):
        def close(self) -> None:
            super().close()
            closed.append("sync")

    class Async(Plain):
        async def close(self) -> None:
            await super().close()
            closed.append("async")

    env: MCPEnvironment = Sync() if kind == "sync" else Async()
    env.reset()
    env.close()
    env.close()
    asyncio.run(env.close_async())
    assert closed == [kind]
    for go_on in (lambda: env.call_tool("say"), lambda: env.call_tool("say_later"), env.reset):
        with pytest.raises(SessionLost):
            go_on()


def test_a_close_that_is_inherited_runs_and_where_there_is_none_no_thread_is_asked() -> None:
    closed_in: list[threading.Thread] = []

    class Closing(Plain):
        def close(self) -> None:
            closed_in.append(threading.current_thread())

    class Inheriting(Closing):
        pass

    def served(cls: type[MCPEnvironment]) -> MCPEnvironment:
        env = cls()
        env._execution.user_code.runner = THREADS
        return env

    asyncio.run(served(Inheriting).close_async())
    assert len(closed_in) == 1 and closed_in[0] is not threading.current_thread()
    env = served(Plain)
    asyncio.run(env.close_async())
    with pytest.raises(SessionLost):
        env.call_tool("say")


def test_a_close_that_raises_closes_all_the_same() -> None:
    class Env(Plain):
        def close(self) -> None:
            raise OSError("busy")

    env = Env()
    with pytest.raises(ExecutionError) as raised:
        env.close()
    assert isinstance(raised.value.__cause__, OSError)
    env.close()
    with pytest.raises(SessionLost):
        env.call_tool("say")


def test_an_environment_is_a_context_manager() -> None:
    closed: list[int] = []

    class Env(Plain):
        def close(self) -> None:
            closed.append(1)

    with Env() as env:
        env.reset()
    assert closed == [1]


# -- deadlines


@pytest.mark.parametrize("survives", [False, True])
def test_a_tool_past_its_deadline_is_a_timeout_and_an_async_one_is_cancelled(survives: bool) -> None:
    cancelled: list[str] = []

    class Env(MCPEnvironment):
        SURVIVES_TIMEOUT = survives

        def __init__(self) -> None:
            @self.tool(timeout_s=0.01)
            async def slow() -> str:
                """Take too long."""
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append("slow")
                    raise
                return ""

            @self.tool
            async def slow_if_asked() -> str:
                """Take too long."""
                await asyncio.Event().wait()
                return ""

            @self.tool
            async def quick() -> str:
                """Be quick."""
                return "quick"

    env = Env()
    env.reset()
    first = env.call_tool("slow")
    assert first.error is not None and first.error.error_type is ToolErrorType.TIMEOUT
    assert cancelled == ["slow"] and first.truncated is not survives and not first.terminated
    if not survives:
        assert first.info["reason"] == "timeout"
        with pytest.raises(EpisodeDone):
            env.call_tool("quick")
        env.reset()
    second = env.call_tool("slow_if_asked", timeout_s=0.01)
    assert second.error is not None and second.error.error_type is ToolErrorType.TIMEOUT
    if not survives:
        env.reset()
    assert env.call_tool("quick", timeout_s=10).text == "quick"


def test_a_tool_that_ignores_its_cancellation_keeps_its_result_and_harms_no_later_step() -> None:
    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()

            @self.tool(timeout_s=0.01)
            async def stubborn() -> str:
                """Go on."""
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
                return "went on"

    env = Env()
    env.reset()
    assert env.call_tool("stubborn").text == "went on"
    assert env.call_tool("say_later").text == "hello"


def test_a_timeout_that_the_tool_itself_raises_is_its_failure_and_no_deadline() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool(timeout_s=20)
            async def impatient() -> str:
                """Wait a moment only."""
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
                return ""

    observation = Env().call_tool("impatient")
    assert observation.error is not None and observation.error.error_type is ToolErrorType.EXECUTION_ERROR


@pytest.mark.parametrize("own", [True, False], ids=["the tool's own", "the caller's"])
def test_a_sync_tool_past_its_deadline_is_left_behind_with_its_environment(own: bool) -> None:
    release, left = threading.Event(), threading.Event()
    closed: list[str] = []

    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()

            @self.tool(timeout_s=0.05 if own else None)
            def stuck() -> str:
                """Hang."""
                release.wait(20)
                left.set()
                return ""

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 1.0

        def close(self) -> None:
            closed.append(threading.current_thread().name)

    env = Env()
    env.reset()
    observation = env.call_tool("stuck", timeout_s=None if own else 0.05)
    assert observation.error is not None and observation.error.error_type is ToolErrorType.TIMEOUT
    assert observation.truncated and observation.reward is None
    with pytest.raises(EpisodeDone):
        env.call_tool("say")
    with pytest.raises(ExecutionError, match="begin with a new one"):
        env.reset()
    assert env.list_tools()
    env.close()
    assert closed == []
    release.set()
    assert left.wait(5)
    for _ in range(500):
        if closed:
            break
        threading.Event().wait(0.01)
    assert closed and closed[0] != threading.current_thread().name
    with pytest.raises(SessionLost):
        env.call_tool("say")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_environment_whose_stuck_tool_has_returned_is_closed_at_once(kind: str) -> None:
    release, left = threading.Event(), threading.Event()
    closed: list[int] = []

    class Stuck(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool(timeout_s=0.05)
            def stuck() -> str:
                """Hang."""
                release.wait(20)
                return ""

    class Sync(Stuck):
        def close(self) -> None:
            closed.append(1)

    class Async(Stuck):
        async def close(self) -> None:
            await asyncio.sleep(0)
            closed.append(1)

    env: MCPEnvironment = Sync() if kind == "sync" else Async()
    env.reset()
    env.call_tool("stuck")
    env._execution.user_code.when_returned(left.set)
    release.set()
    assert left.wait(5)
    env.close()
    assert closed == [1]


def test_a_cancelled_step_is_recorded_and_the_next_one_goes_on() -> None:
    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.begun = asyncio.Event()

            @self.tool
            async def endless() -> str:
                """Never end."""
                self.begun.set()
                await asyncio.Event().wait()
                return ""

    async def main() -> None:
        env = Env()
        await env.reset_async()
        step = asyncio.create_task(env.step_async(CallToolAction(tool_name="endless")))
        await env.begun.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert (await env.step_async(CallToolAction(tool_name="say_later"))).text == "hello"
        assert env.trajectory is not None
        assert [record.call.name for record in env.trajectory.steps] == ["endless", "say_later"]
        failure = env.trajectory.steps[0].outcome.error
        assert failure is not None and failure.error_type is ToolErrorType.TRANSPORT_ERROR

    asyncio.run(main())


# -- reentrancy and nesting


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_tool_that_steps_its_own_environment_fails_and_does_not_wait_for_itself(kind: str) -> None:
    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()

            @self.tool
            def again() -> str:
                """Step the environment that is stepping."""
                return self.call_tool("say").text

            @self.tool
            async def again_later() -> str:
                """Step the environment that is stepping."""
                return (await self.step_async(CallToolAction(tool_name="say"))).text

    env = Env()
    env.reset()
    for _ in range(2):
        observation = env.call_tool("again" if kind == "sync" else "again_later")
        assert observation.error is not None and observation.error.error_type is ToolErrorType.EXECUTION_ERROR
    assert env.step_count == 2
    assert env.call_tool("say").text == "hello"


def test_reset_and_close_inside_a_step_are_misuse() -> None:
    caught: list[type[BaseException]] = []

    class Env(Plain):
        def __init__(self) -> None:
            super().__init__()

            @self.tool
            def meddle() -> str:
                """Reset and close from inside."""
                for forbidden in (self.reset, self.close):
                    try:
                        forbidden()
                    except Misuse as error:
                        caught.append(type(error))
                return "still here"

    assert Env().call_tool("meddle").text == "still here"
    assert caught == [Misuse, Misuse]


@pytest.mark.parametrize("outer", ["sync", "async"])
@pytest.mark.parametrize("inner", ["say", "say_later"])
def test_a_tool_may_step_another_environment(outer: str, inner: str) -> None:
    class Outer(MCPEnvironment):
        def __init__(self) -> None:
            self.inner = Plain()

            def ask(text: str) -> str:
                """Ask the inner environment."""
                return self.inner.call_tool(inner, {"text": text}).text

            async def ask_later(text: str) -> str:
                """Ask the inner environment."""
                return ask(text)

            self.tool(ask if outer == "sync" else ask_later, name="ask")

    env = Outer()
    for text in ("implicit reset", "running"):
        assert env.call_tool("ask", {"text": text}).text == text
    assert env.inner.step_count == 2 and env.step_count == 2


# -- planes and modes in process


def test_in_process_the_mode_is_simulation() -> None:
    env = Plain()
    assert env.mode is Mode.SIMULATION


def test_invariant_2_the_agent_plane_sees_tools_and_nothing_else() -> None:
    async def main() -> None:
        env = CounterEnvironment(target=2)
        async with Client(env.mcp) as client:
            assert {tool.name for tool in await client.list_tools()} == {"add", "add_sync"}
            first = await client.call_tool("add", {"by": 1})
            assert "reward" not in str(first) and "episode" not in str(first)
            await client.call_tool("add", {"by": 1})
            over = await client.call_tool("add", {"by": 1}, raise_on_error=False)
            assert over.is_error and over.content[0].text == "The episode is over."
            assert {tool.name for tool in await client.list_tools()} == {"add", "add_sync"}
        assert env.count == 2 and env.step_count == 2
        await env.close_async()

    asyncio.run(main())


def test_what_lifespan_yields_is_shared_by_all_instances() -> None:
    entered: list[str] = []

    class Env(Plain):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls) -> Any:
            entered.append("in")
            yield {"model": object()}

    class Without(Plain):
        pass

    one, other = Env(), Env()
    assert one.shared is other.shared and one.shared["model"] is other.shared["model"]
    assert entered == ["in"]
    assert Without().shared is None


def test_a_state_or_a_lifespan_that_would_not_be_asked_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(
        TypeError, match=r"Wrong.state is a method. Clients read it as an attribute: put @property above it"
    ):

        class Wrong(MCPEnvironment):
            def state(self) -> State:
                return State()

    with pytest.raises(
        TypeError, match=r"Mine.lifespan is not a class method: put @classmethod above @asynccontextmanager"
    ):

        class Mine(MCPEnvironment):
            async def lifespan(self) -> AsyncIterator[None]:  # type: ignore[override]
                yield


def test_a_reset_that_returns_something_else_says_what() -> None:
    class Gym(MCPEnvironment):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
            return {}, {}

    with Gym() as env, pytest.raises(ExecutionError) as failed:
        env.reset()
    assert "reset returned a tuple" in str(failed.value.__cause__)


def test_class_attributes_that_look_like_misspelt_settings_are_warned_of() -> None:
    with pytest.warns(UserWarning) as caught:

        class Slips(MCPEnvironment):
            """Sets what nothing reads, and things of its own."""

            max_step = 3
            SUPPORT_CONCURRENT_SESSIONS = True
            scores = 1
            step_limit = 2

    assert [str(warning.message) for warning in caught] == [
        "mcpenv does not read Slips.max_step. Did you mean 'max_steps'?",
        "mcpenv does not read Slips.SUPPORT_CONCURRENT_SESSIONS. Did you mean 'SUPPORTS_CONCURRENT_SESSIONS'?",
    ]
    assert caught[0].filename == __file__


def test_a_tool_of_a_class_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidTool, match=r"write @self\.tool above a function inside __init__"):

        class OfClass(MCPEnvironment):
            """Decorates a method."""

            @MCPEnvironment.tool  # type: ignore[call-overload]
            def act_now(self) -> int:
                return 1


@pytest.mark.parametrize(
    ("arguments", "options", "shown"),
    [
        ((), {}, r"'\(unnamed\)'"),
        ((), {"mode": "simulation", "terminal": True}, r"'\(unnamed\)'"),
        ((), {"mode": "simulation", "name": "act"}, "'act'"),
        (("act",), {}, "'act'"),
    ],
)
def test_a_tool_of_a_class_with_options_is_refused_the_same(
    arguments: tuple[Any, ...], options: dict[str, Any], shown: str
) -> None:
    with pytest.raises(InvalidTool, match=rf"{shown}.*write @self\.tool above a function inside __init__"):

        class OfClass(MCPEnvironment):
            """Decorates a method."""

            @MCPEnvironment.tool(*arguments, **options)  # type: ignore[untyped-decorator]
            def act_now(self) -> int:
                return 1


def test_tools_are_called_by_coroutines_too() -> None:
    async def main() -> None:
        env = Plain()
        await env.reset_async()
        assert (await env.call_tool_async("say", {"text": "hi"})).text == "hi"
        await env.end_async()
        await env.close_async()

    asyncio.run(main())


def test_an_observation_that_is_returned_again_changes_no_record() -> None:
    class Trail(Observation):
        places: list[str] = []
        lock: Any = None

    class Walk(MCPEnvironment):
        action_types = (Move,)

        def __init__(self) -> None:
            self.trail = Trail()

        def act(self, action: Action) -> Observation:
            assert isinstance(action, Move)
            self.trail.places.append("there")
            return self.trail

    env = Walk()
    env.reset()
    first = env.step(Move(by=1))
    env.step(Move(by=1))
    assert env.trajectory is not None
    kept = [step.outcome.value.places for step in env.trajectory.steps]
    assert kept == [["there"], ["there", "there"]]
    assert isinstance(first, Trail) and first.places == ["there"]
    env.trail.lock = threading.Lock()  # it has no copy
    assert env.step(Move(by=1)).model_dump(include={"places"}) == {"places": ["there"] * 3}


def test_a_reason_and_a_component_that_are_no_utf_8_are_kept_readable() -> None:
    class Odd(MCPEnvironment):
        def __init__(self) -> None:
            self.tool(self.leave)

        def leave(self) -> str:
            """Leave."""
            self.finish(Reward(1.0, {"tidy \ud800": 1.0}), reason="left \ud800")
            return "left"

    env = Odd()
    env.reset()
    env.call_tool("leave")
    assert env.trajectory is not None and env.trajectory.total_reward == 1.0
    assert env.trajectory.reason == "left \ufffd"
    assert env.trajectory.steps[0].reward == Reward(1.0, {"tidy \ufffd": 1.0})
