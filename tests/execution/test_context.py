"""FastMCP's context, as tools that ask for none find it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastmcp.server import context as fastmcp_context
from fastmcp.server.context import Context, set_context
from fastmcp.server.dependencies import get_context

from mcpenv import CallToolAction, MCPEnvironment
from mcpenv_client.types.observations import CallToolObservation


class Looks(MCPEnvironment):
    """Tools that look for FastMCP's context."""

    def __init__(self) -> None:
        @self.tool
        async def keeps(value: int) -> int:
            """Keep a value until the next reset, another until the end of the call."""
            context = get_context()
            before = await context.get_state("kept")
            await context.set_state("kept", value)
            await context.set_state("mine", value, serializable=False)
            assert await context.get_state("mine") == value
            await context.info(f"kept {value}")
            return -1 if before is None else int(before)

        @self.tool
        async def has_own() -> bool:
            """Return True if something is left of the last call."""
            return await get_context().get_state("mine") is not None


def given_by(env: MCPEnvironment, name: str, arguments: dict[str, Any]) -> Any:
    seen = env.call_tool(name, arguments)
    assert isinstance(seen, CallToolObservation) and seen.result is not None, seen
    return seen.result.data


def test_tools_find_the_context_of_their_own_step() -> None:
    one, other = Looks(), Looks()
    for env in (one, other):
        env.reset()
        assert given_by(env, "keeps", {"value": 1}) == -1
        assert given_by(env, "keeps", {"value": 2}) == 1
        assert given_by(env, "has_own", {}) is False
        assert [entry.message for entry in env._execution.episode.trajectory.steps[1].logs] == ["kept 2"]  # type: ignore[union-attr]
    one.reset()
    assert given_by(one, "keeps", {"value": 3}) == -1
    assert given_by(other, "keeps", {"value": 3}) == 2


def test_after_a_step_there_is_no_context() -> None:
    env = Looks()
    env.reset()
    env.step(CallToolAction(tool_name="has_own", arguments={}))
    with pytest.raises(RuntimeError):
        get_context()


class Hands(MCPEnvironment):
    """An environment with a tool that hands its context to a thread."""

    def __init__(self) -> None:
        @self.tool
        async def hands() -> str:
            """Have another thread log."""
            context, loop = get_context(), asyncio.get_running_loop()

            def work() -> str:
                asyncio.run_coroutine_threadsafe(context.info("from a thread"), loop).result(30)
                return context.session_id

            return await loop.run_in_executor(None, work)

        @self.tool
        async def enters() -> str:
            """Use what FastMCP's constructor makes."""
            async with get_context() as context:
                return f"{context.fastmcp.name} {context.request_id}"


def test_a_context_that_was_found_is_that_of_its_step_wherever_it_goes() -> None:
    env = Hands()
    env.reset()
    given_by(env, "hands", {})
    trajectory = env._execution.episode.trajectory
    assert trajectory is not None
    assert [entry.message for entry in trajectory.steps[0].logs] == ["from a thread"]
    assert given_by(env, "enters", {}) == "mcpenv step-2"


def test_fastmcps_context_variable_is_where_it_was() -> None:
    """`tool_call` sets it; when it moves, this fails first."""
    assert fastmcp_context._current_context.get() is None
    env = Looks()
    with set_context(Context(env.mcp)) as context:
        assert fastmcp_context._current_context.get() is context
