"""An end is judged whatever its agent does, by itself, once; and what could not be judged says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError

from mcpenv import (
    CallToolAction,
    EpisodeDone,
    Evidence,
    ExecutionError,
    MCPEnvironment,
    Misuse,
    ObjectWorld,
    Task,
    ToolCall,
    ToolOutcome,
    score_of,
)
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, InvalidMessage

TIMEOUT_S = 60


class Examined(MCPEnvironment):
    """Its verifier waits for the word to go on, and finds that nothing is right."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    examining: asyncio.Event
    go_on: asyncio.Event

    def __init__(self) -> None:
        self.count = 0
        self.world = ObjectWorld(lambda: {"count": self.count})

        @self.tool(concurrent=True)
        async def add() -> int:
            """Add."""
            self.count += 1
            return self.count

        @self.tool(concurrent=True, terminal=True)
        async def submit() -> str:
            """Say that it is done."""
            return "submitted"

    async def verify(self, evidence: Evidence) -> float:
        self.examining.set()
        await self.go_on.wait()
        return -1.0


class Fails(Examined):
    """Its verifier raises."""

    async def verify(self, evidence: Evidence) -> float:
        raise RuntimeError("out of order")


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Fails) as address:
        yield address


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await event.wait()


def test_an_agent_that_goes_away_does_not_take_its_score_along() -> None:
    async def main() -> None:
        Examined.examining, Examined.go_on = asyncio.Event(), asyncio.Event()
        env = Examined()
        await env.reset_async()
        async with asyncio.timeout(TIMEOUT_S), Client(env.mcp) as agent:
            submitting = asyncio.ensure_future(agent.call_tool("submit"))
            await until(Examined.examining)
            submitting.cancel()
            await asyncio.wait([submitting])
            waiting = asyncio.ensure_future(env._execution.wait())
            Examined.go_on.set()
            assert await waiting
        trajectory = env.trajectory
        assert trajectory is not None and trajectory.verified is not None
        assert (trajectory.verified.value, trajectory.total_reward, score_of(trajectory)) == (-1.0, -1.0, -1.0)

    asyncio.run(main())


def test_nothing_runs_beside_a_verifier_and_nothing_begins_after_the_end() -> None:
    async def main() -> None:
        Examined.examining, Examined.go_on = asyncio.Event(), asyncio.Event()
        env = Examined()
        await env.reset_async()
        submitting = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="submit", arguments={})))
        await until(Examined.examining)
        with pytest.raises(EpisodeDone):
            await env.step_async(CallToolAction(tool_name="add", arguments={}))
        Examined.go_on.set()
        assert (await submitting).reward == -1.0
        assert env.count == 0

    asyncio.run(main())


def test_a_tool_that_is_under_way_at_the_end_is_waited_for_before_the_end_is_judged() -> None:
    class Slow(Examined):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.free = asyncio.Event(), asyncio.Event()

            @self.tool(concurrent=True)
            async def slow() -> str:
                """Add when it may."""
                self.begun.set()
                await self.free.wait()
                self.count += 1
                return "slow"

        async def verify(self, evidence: Evidence) -> float:
            assert evidence.after is not None
            return float(evidence.after["count"])

    async def main() -> None:
        env = Slow()
        await env.reset_async()
        slow = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="slow", arguments={})))
        await until(env.begun)
        submitting = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="submit", arguments={})))
        while not env._execution.scoring.ended:  # type: ignore[union-attr]
            await asyncio.sleep(0)
        env.free.set()
        await slow
        assert (await submitting).reward == 1.0
        assert env.trajectory is not None
        assert [step.call.name for step in env.trajectory.steps] == ["slow", "submit"]

    asyncio.run(main())


def test_a_last_step_that_was_stopped_has_no_score() -> None:
    class Limited(Examined):
        max_steps = 1

        def __init__(self) -> None:
            super().__init__()

            @self.tool
            async def endless() -> str:
                """Never return."""
                self.examining.set()
                await asyncio.Event().wait()
                return "never"

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 0.5

    async def main() -> None:
        Examined.examining = asyncio.Event()
        env = Limited()
        await env.reset_async()
        step = asyncio.ensure_future(env.step_async(CallToolAction(tool_name="endless", arguments={})))
        await until(Examined.examining)
        step.cancel()
        await asyncio.wait([step])
        trajectory = env.trajectory
        assert trajectory is not None and trajectory.done
        assert trajectory.steps[-1].fault == "CANCELLED" and score_of(trajectory) is None

    asyncio.run(main())


def test_an_end_that_could_not_be_judged_says_so_to_whoever_waits(url: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            address = (await env.reset()).info["mcp_url"]
            async with Client(address) as agent:
                with pytest.raises(ToolError, match="could not be completed"):
                    await agent.call_tool("submit")
            waited = await env.wait(TIMEOUT_S)
            assert (waited.done, waited.reward, waited.info["fault"]) == (True, None, "EXECUTION_ERROR")
            assert "return" not in waited.info
            await env.reset()
            with pytest.raises(ExecutionError):
                await env.end()
            again = await env.end()
            assert (again.reward, again.info["fault"]) == (None, "EXECUTION_ERROR") and "return" not in again.info

    asyncio.run(main())


def test_ctrl_c_in_a_verifier_ends_the_episode_without_a_score() -> None:
    class Interrupted(MCPEnvironment):
        """Its author presses Ctrl-C."""

        def __init__(self) -> None:
            @self.tool(terminal=True)
            def submit() -> str:
                """Say that it is done."""
                return "submitted"

        def verify(self, evidence: Evidence) -> float:
            raise KeyboardInterrupt

    for ends in ("end", "submit"):
        env: Any = Interrupted()
        env.reset()
        with pytest.raises(KeyboardInterrupt):
            env.end() if ends == "end" else env.call_tool("submit")
        assert env.trajectory.done and score_of(env.trajectory) is None
        assert env.trajectory.fault == "CANCELLED" or env.trajectory.steps[-1].fault == "CANCELLED"


def test_finish_has_no_meaning_in_a_verifier() -> None:
    class Finishes(MCPEnvironment):
        """Would add to its reward."""

        def verify(self, evidence: Evidence) -> float:
            with pytest.raises(Misuse):
                self.finish(reward=5)
            return 0.0

    env = Finishes()
    env.reset()
    assert env.end().info["return"] == 0.0


def test_a_verifier_that_is_async_without_saying_so_is_refused() -> None:
    class Wrapped(MCPEnvironment):
        """Hides that it is async."""

        def verify(self, evidence: Evidence) -> Any:
            return asyncio.sleep(0, 1.0)

    env = Wrapped()
    env.reset()
    with pytest.raises(ExecutionError) as failed:
        env.end()
    assert isinstance(failed.value.__cause__, TypeError)


def test_what_an_author_does_to_options_and_tasks_stays_in_that_episode() -> None:
    class Deals(MCPEnvironment):
        """Deals the cards that it is given."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, deck: list[int] | None = None) -> None:  # type: ignore[override]
            assert deck is not None
            self.dealt = [deck.pop() for _ in range(len(deck))]

        def verify(self, evidence: Evidence) -> float:
            assert evidence.task is not None
            return float(evidence.task.metadata.pop("answer", 0))

    task = Task(id="cards", options={"deck": [1, 2, 3]}, metadata={"answer": 1})
    env: Any = Deals()
    for _ in range(2):
        env.reset(task=task)
        assert env.dealt == [3, 2, 1]
        assert env.trajectory.options == {"deck": [1, 2, 3]}
        assert env.end().reward == 1.0


def test_a_reset_that_is_refused_leaves_the_episode_its_address() -> None:
    class Levels(Examined):
        def reset(self, level: int) -> None:  # type: ignore[override]
            self.level = level

    async def main(url: str) -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            address = (await env.reset(level=1)).info["mcp_url"]
            for refused in ({"id": "no level"}, {"id": "x", "options": {"level": 1}, "verifier": {"kind": "bogus"}}):
                with pytest.raises(InvalidMessage):
                    await env.reset(task=refused)
            async with Client(address) as agent:
                assert (await agent.call_tool("add")).data == 1
            assert (await env.state()).step_count == 1

    with serving(Levels) as url:
        asyncio.run(main(url))
