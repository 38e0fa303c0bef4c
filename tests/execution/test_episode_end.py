"""The end of an episode: who ends it, how it is verified, and where its record goes."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import httpx
import pytest

from mcpenv import (
    Evidence,
    ExecutionError,
    MCPEnvironment,
    Mode,
    ObjectWorld,
    OverSteps,
    Rubric,
    Task,
    TaskLimits,
    TaskSet,
    ToolCall,
    ToolOutcome,
    Trajectory,
    Verified,
    WeightedSum,
)
from mcpenv.execution.sink import SpilledSteps
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.tools.registry import ToolRegistry
from mcpenv_client import EnvClient, EpisodeDone, InvalidMessage, StepRecord
from mcpenv_client.errors import CapacityReached, OperationTimeout, SessionLost


def reach(rng: random.Random, index: int) -> dict[str, Any]:
    return {"prompt": f"Reach {index + 3}.", "options": {"target": index + 3}}


TARGETS = TaskSet.generate(reach, seed=0, sizes={"train": 10, "test": 10})


class Counter(MCPEnvironment):
    """Count to the target."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks: ClassVar[TaskSet | None] = TARGETS

    def __init__(self) -> None:
        self.count, self.target = 0, 0
        self.seed: int | None = None
        self.verified_in: list[int] = []
        self.world = ObjectWorld(lambda: {"count": self.count})

        @self.tool
        def add(by: int = 1) -> int:
            """Add."""
            self.count += by
            return self.count

        @self.tool(terminal=True)
        async def submit() -> str:
            """Say that it is done."""
            return "submitted"

    def reset(self, seed: int | None = None, target: int = 5) -> None:  # type: ignore[override]
        self.count, self.target, self.seed = 0, target, seed

    def verify(self, evidence: Evidence) -> float:
        assert evidence.before == {"count": 0}
        assert evidence.after == {"count": self.count}
        self.verified_in.append(threading.get_ident())
        return 1.0 if self.count == self.target else 0.0


class Sink:
    """Keeps what it is given."""

    agent: str | None = None

    def __init__(self) -> None:
        self.episodes: list[Trajectory] = []
        self.taken: list[StepRecord] = []
        self.asked: list[str] = []

    def spilled(self, trajectory: Trajectory) -> SpilledSteps | None:
        return None

    def resume(self, trajectory: Trajectory, spilled: SpilledSteps) -> None:
        raise AssertionError

    def spill(self, trajectory: Trajectory, steps: Sequence[StepRecord]) -> None:
        self.taken.extend(steps)

    def episode_over(self, trajectory: Trajectory, outputs: Any = ()) -> None:
        self.episodes.append(trajectory)

    def played_by(self, episode_id: str | None, agent: str) -> None:
        return

    def said(self, episode_id: str | None, turns: Any) -> None:
        return

    def another(self, tools: ToolRegistry, mode: Mode) -> Sink:
        return Sink()

    async def written(self, episode_id: str) -> bool:
        self.asked.append(episode_id)
        return True


def with_sink(env: MCPEnvironment) -> Sink:
    sink = Sink()
    env._execution.sink = sink
    return sink


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Counter) as address:
        yield address


# -- tasks at reset


def test_a_session_leaves_no_more_stuck_makers_of_tasks_than_may_be() -> None:
    gate, stuck = threading.Event(), threading.Semaphore(0)

    def make(chance: random.Random, index: int) -> Task:
        if index == 99:
            stuck.release()
            assert gate.wait(60)
        return Task(id="x", prompt=f"Task {index}.")

    class Slow(MCPEnvironment):
        """Its hundredth task is never done."""

        tasks = TaskSet.generate(make, seed=1, sizes={"train": 100})

    config = ServerConfig(max_quarantined=1, step_timeout_s=0.2)
    with serving(Slow, config) as address, EnvClient(address).sync() as client:
        try:
            for _ in range(2):
                with pytest.raises(OperationTimeout):
                    client.reset(split="train", index=99)
                assert stuck.acquire(timeout=60)
            with pytest.raises(CapacityReached, match="too many environments are stuck in code that cannot be stopped"):
                client.reset(split="train", index=99)
            assert not stuck.acquire(blocking=False)  # no third thread was begun
        finally:
            gate.set()
        # Without a task there is nothing to get stuck in; the stuck threads end one after the other.
        assert _as_soon_as_there_is_room(client).prompt == ""


def _as_soon_as_there_is_room(client: Any) -> Any:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            return client.reset()
        except CapacityReached:
            time.sleep(0.005)
    raise AssertionError("it has taken no sessions since")


def test_a_task_brings_its_prompt_its_options_and_its_seed() -> None:
    env: Any = Counter()
    observation = env.reset(split="test", index=1)
    assert observation.prompt == observation.metadata["prompt"] == "Reach 4."
    assert observation.info["task"] == {"id": "test-1", "split": "test", "version": "1"}
    assert (env.target, env.seed) == (4, TARGETS.get("test", 1).stable_seed)
    assert env.task is not None and env.task.id == "test-1"
    assert env.trajectory is not None and env.trajectory.task == env.task
    assert env.trajectory.seed == env.seed


def test_what_the_orchestrator_says_goes_before_what_the_task_says() -> None:
    env: Any = Counter()
    env.reset(seed=7, task="test-1", target=9)
    assert (env.seed, env.target) == (7, 9)


def test_a_reset_without_a_task_has_none() -> None:
    env: Any = Counter()
    env.reset(task="test-1")
    assert env.reset().prompt == ""
    assert env.task is None
    assert env.target == 5


def test_the_seed_of_a_task_is_the_same_everywhere() -> None:
    assert Task(id="a", split="test").stable_seed == 386743827
    assert Task(id="a", split="train").stable_seed != Task(id="a", split="test").stable_seed
    assert Task(id="a", seed=3).stable_seed == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"split": "nowhere", "index": 0}, "no split 'nowhere'"),
        ({"split": "test", "index": 10}, "no task 10"),
        ({"index": 1}, "index is given with a split"),
        ({"split": 3}, "split is the name of a split"),
        ({"split": "test"}, "split is given with an index"),
        ({"split": "test", "index": True}, "index is a place in the split"),
        ({"task": 5}, "task is a task, or the id of one"),
        ({"task": "nowhere"}, r"no task 'nowhere' \('train' has "),
        ({"task_id": "test-1"}, "options: .*; 'task', or 'split' and 'index', choose a task"),
        ({"task": {"prompt": "x"}}, "no task: id"),
        ({"task": {"id": "x", "colour": "red"}}, "no task: colour"),
        ({"task": {"id": "x", "options": {"colour": "red"}}}, "task 'x': unknown reset option 'colour'"),
        (
            {"task": {"id": "x", "options": {"target": "many"}}},
            "task 'x': invalid reset options: target: Input should be a valid integer",
        ),
        ({"task": "test-1", "split": "test"}, "task is given alone"),
    ],
)
def test_a_task_that_cannot_be_is_refused_and_the_episode_goes_on(url: str, asked: dict[str, Any], said: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset()
        with pytest.raises(InvalidMessage, match=said):
            env.reset(**asked)
        assert env.call_tool("add").text == "1"
    local: Any = Counter()
    local.reset()
    with pytest.raises(InvalidMessage, match=said):
        local.reset(**asked)
    assert local.call_tool("add").text == "1"


def test_a_reset_option_of_another_type_is_named(url: str) -> None:
    with EnvClient(url).sync() as env:
        with pytest.raises(InvalidMessage, match="invalid reset options: target: Input should be a valid integer"):
            env.reset(target="many")
        env.reset(target=3)


def test_an_environment_without_tasks_takes_one_that_it_is_given() -> None:
    class Plain(Counter):
        tasks = None

    env: Any = Plain()
    assert env.reset(task=Task(id="own", prompt="Do it.", options={"target": 2})).prompt == "Do it."
    assert env.target == 2
    with pytest.raises(InvalidMessage, match="unknown reset option 'split'"):
        env.reset(split="test")


def test_a_reset_that_declares_task_is_given_the_task() -> None:
    class Reads(MCPEnvironment):
        """Reads its task."""

        tasks = TARGETS

        def reset(self, task: Task | None = None) -> None:  # type: ignore[override]
            self.seen = task

    env: Any = Reads()
    env.reset(task=Task(id="x", metadata={"answer": 42}))
    assert env.seen is not None and env.seen.metadata == {"answer": 42}
    assert env.trajectory is not None and env.trajectory.options == {}


def test_an_authors_own_option_named_task_stays_theirs() -> None:
    class Own(MCPEnvironment):
        """Has an option of that name."""

        def reset(self, task: str = "a", split: str = "b", index: int = 0) -> None:  # type: ignore[override]
            self.seen = (task, split, index)

    env: Any = Own()
    env.reset(task="mine", split="s", index=2)
    assert env.seen == ("mine", "s", 2)
    with serving(Own) as url, EnvClient(url).sync() as client:
        client.reset(task="theirs")
        with pytest.raises(InvalidMessage):
            client.reset(task={"id": "x"})


def test_limits_of_a_task_are_beside_those_of_the_environment() -> None:
    env: Any = Counter()
    env.max_steps = 5
    env.reset(task=Task(id="x", limits=TaskLimits(max_steps=2)))
    assert not env.call_tool("add").done
    last = env.call_tool("add")
    assert (last.truncated, last.info["reason"]) == (True, "max_steps")
    env.reset(task=Task(id="x", limits=TaskLimits(max_steps=9)))
    assert [env.call_tool("add").done for _ in range(5)] == [False] * 4 + [True]
    env.reset(task=Task(id="x", limits=TaskLimits(timeout_s=1e-9)))
    last = env.call_tool("add")
    assert (last.truncated, last.info["reason"]) == (True, "time_limit")


def test_tasks_that_are_no_task_set_are_refused_where_the_class_is_written() -> None:
    with pytest.raises(TypeError, match=r"tasks is a list\. Make it a TaskSet"):
        type("Wrong", (MCPEnvironment,), {"tasks": [1, 2]})


# -- the end


def test_the_orchestrator_ends_an_episode_and_the_state_is_verified() -> None:
    env: Any = Counter()
    env.reset(task="test-0")
    env.call_tool("add", {"by": 3})
    ended = env.end(reason="the agent stopped")
    assert (ended.reward, ended.terminated, ended.truncated) == (1.0, True, False)
    assert ended.info["return"] == 1.0
    assert ended.info["reward"] == {"verified": 1.0}
    assert ended.info["reason"] == "the agent stopped"
    trajectory = env.trajectory
    assert trajectory is not None
    assert trajectory.verified == trajectory.end_reward and trajectory.total_reward == 1.0
    assert (trajectory.terminated, trajectory.reason) == (True, "the agent stopped")
    with pytest.raises(EpisodeDone):
        env.call_tool("add")


def test_an_end_is_answered_again_and_judged_once(url: str) -> None:
    env: Any = Counter()
    env.reset(task="test-0")
    assert env.end() == env.end(truncated=True)
    assert len(env.verified_in) == 1
    with EnvClient(url).sync() as client:
        client.reset(task="test-0")
        assert client.end().reward == 0.0
        assert client.end(truncated=True).terminated
        assert client.wait(1).info["return"] == 0.0


def test_an_end_before_the_first_reset_is_refused(url: str) -> None:
    with pytest.raises(InvalidMessage, match="end is not possible in state new"):
        Counter().end()
    with EnvClient(url).sync() as client:
        with pytest.raises(InvalidMessage):
            client.end()
        client.reset()
        with pytest.raises(InvalidMessage, match="truncated and reason"):
            client.end(reason="x" * 1001)
        assert client.end(truncated=True, reason="budget").truncated
    env: Any = Counter()
    env.close()
    with pytest.raises(SessionLost):
        env.end()


def test_an_end_over_http_is_the_same(url: str) -> None:
    opened = httpx.post(f"{url}/reset", json={"split": "test", "index": 0}).json()
    assert opened["metadata"] == {"prompt": "Reach 3."}
    session = {"session_id": opened["session_id"]}
    httpx.post(
        f"{url}/step", json={**session, "action": {"type": "call_tool", "tool_name": "add", "arguments": {"by": 3}}}
    )
    ended = httpx.post(f"{url}/end", json=session).json()
    assert (ended["reward"], ended["done"], ended["info"]["return"]) == (1.0, True, 1.0)
    assert httpx.post(f"{url}/end", json={}).status_code == 422
    assert httpx.post(f"{url}/end", json={**session, "why": "x"}).status_code == 422


def test_a_step_that_ends_the_episode_is_verified_with_it(url: str) -> None:
    with EnvClient(url).sync() as env:
        env.reset(task="test-0")
        env.call_tool("add", {"by": 3})
        last = env.call_tool("submit")
        assert (last.reward, last.done, last.info["reward"]) == (1.0, True, {"verified": 1.0})
        trajectory = env.trajectory()
        assert trajectory.verified is not None and trajectory.verified.value == 1.0
        assert trajectory.end_reward is None


def test_verified_in_a_rubric_is_weighed_and_not_added_again() -> None:
    class Steps(Rubric):
        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 1.0

    env: Any = Counter()
    env.rubric = WeightedSum({"work": OverSteps(Steps()), "solved": Verified()}, weights={"work": 0.1, "solved": 10})
    env.reset(task="test-0")
    env.call_tool("add", {"by": 3})
    ended = env.end()
    assert ended.reward == pytest.approx(0.1 + 10)
    assert ended.info["reward"] == {"work": 1.0, "solved": 1.0}


def test_a_verifier_that_raises_leaves_no_score_and_the_episode_is_over(url: str) -> None:
    class Broken(Counter):
        def verify(self, evidence: Evidence) -> float:
            raise RuntimeError("out of order")

    for last in ("end", "submit"):
        env: Any = Broken()
        env.reset()
        with pytest.raises(ExecutionError, match="verify raised RuntimeError"):
            env.end() if last == "end" else env.call_tool("submit")
        trajectory = env.trajectory
        assert trajectory is not None
        assert trajectory.done and trajectory.verified is None
        assert (trajectory.fault if last == "end" else trajectory.steps[-1].fault) == "EXECUTION_ERROR"
        assert env.end().reward is None


def test_an_async_verifier_and_a_number_that_is_none_are_judged_alike() -> None:
    class Late(Counter):
        async def verify(self, evidence: Evidence) -> float:  # type: ignore[override]
            await asyncio.sleep(0)
            return 0.5

    class Infinite(Counter):
        def verify(self, evidence: Evidence) -> float:
            return float("inf")

    env: Any = Late()
    env.reset()
    assert env.end().reward == 0.5
    env = Infinite()
    env.reset()
    with pytest.raises(ExecutionError):
        env.end()


def test_rubrics_are_asked_about_an_episode_without_steps() -> None:
    class Whole(Rubric):
        def score_trajectory(self, trajectory: Trajectory) -> float:
            return float(len(trajectory.steps))

    class Plain(MCPEnvironment):
        """Nothing but a rubric."""

        rubric = Whole()

    env: Any = Plain()
    env.reset()
    assert env.end().reward == 0.0


def test_an_agents_call_after_the_end_is_answered_that_it_is_over(url: str) -> None:
    from fastmcp import Client

    async def act(address: str) -> str:
        async with Client(address) as agent:
            result = await agent.call_tool("add", {}, raise_on_error=False)
            return str(result.content[0].text)

    with EnvClient(url).sync() as env:
        address = env.reset(task="test-0").info["mcp_url"]
        env.end()
        assert asyncio.run(act(address)) == "The episode is over."


# -- where records go


def test_every_episode_goes_to_the_sink_once_with_its_ending() -> None:
    env: Any = Counter()
    sink = with_sink(env)
    env.reset()
    env.call_tool("add")
    env.reset()
    env.end(truncated=True, reason="budget")
    env.reset()
    env.call_tool("submit")
    env.reset()
    env.close()
    endings = [(each.reason, each.terminated, each.truncated, len(each.steps)) for each in sink.episodes]
    assert endings == [
        ("reset", False, False, 1),
        ("budget", False, True, 0),
        (None, True, False, 1),
        ("closed", False, False, 0),
    ]
    assert all(each.ended_at is not None for each in sink.episodes)


def test_an_episode_whose_reset_failed_never_began() -> None:
    class Fails(Counter):
        def reset(self, seed: int | None = None, fail: bool = False) -> None:  # type: ignore[override]
            if fail:
                raise RuntimeError("no world")
            super().reset(seed)

    env: Any = Fails()
    sink = with_sink(env)
    env.reset()
    with pytest.raises(ExecutionError):
        env.reset(fail=True)
    env.close()
    assert [each.reason for each in sink.episodes] == ["reset"]


def test_a_recorded_episode_has_a_seed() -> None:
    env: Any = Counter()
    with_sink(env)
    env.reset()
    assert env.seed is not None
    assert env.trajectory is not None and env.trajectory.seed == env.seed


def test_steps_that_are_not_kept_go_to_the_sink() -> None:
    env: Any = Counter()
    env.max_kept_steps = 2
    sink = with_sink(env)
    env.reset()
    for _ in range(5):
        env.call_tool("add")
    assert [record.call.step for record in sink.taken] == [1, 2, 3]


def test_tools_that_run_together_all_stand_in_the_record() -> None:
    class Together(MCPEnvironment):
        """Two tools that meet."""

        def __init__(self) -> None:
            self.ended = asyncio.Event()

            @self.tool(concurrent=True)
            async def slow() -> str:
                """Wait for the end."""
                await self.ended.wait()
                return "late"

            @self.tool(concurrent=True, terminal=True)
            async def quick() -> str:
                """End it."""
                return "over"

    async def both() -> list[str]:
        env = Together()
        sink = with_sink(env)
        await env.reset_async()
        slow = asyncio.ensure_future(env._execution.call_tool("slow", {}))
        await asyncio.sleep(0)
        await env._execution.call_tool("quick", {})
        assert sink.episodes == []
        env.ended.set()
        await slow
        return [record.call.name for record in sink.episodes[0].steps]

    assert asyncio.run(both()) == ["quick", "slow"]
