"""An environment in the same process has the methods of a client, and pools find it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcpenv import MCPEnvironment, Misuse
from mcpenv.extensions.in_process import InProcessClient, SyncInProcessClient
from mcpenv.extensions.in_process.instances import pool_instances
from mcpenv_client import CallToolAction

ECHO = Path(__file__).parents[3] / "envs" / "echo_mcp"


class Counter(MCPEnvironment):
    """Count."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

        @self.tool
        def add(by: int = 1) -> int:
            """Add."""
            self.count += by
            return self.count


def test_an_episode_is_played_with_blocking_methods() -> None:
    with SyncInProcessClient(Counter()) as client:
        with pytest.raises(Misuse, match=r"call reset\(\) first"):
            client.trajectory()
        client.reset(seed=1)
        before = client.snapshot()
        assert client.call_tool("add", {"by": 2}).observation.result.data == 2  # type: ignore[attr-defined]
        assert client.step(CallToolAction(tool_name="add", arguments={})).observation.result.data == 3  # type: ignore[attr-defined]
        assert client.state().step_count == 2
        assert [tool.name for tool in client.list_tools()] == ["add"]
        client.restore(before)
        assert client.call_tool("add").observation.result.data == 1  # type: ignore[attr-defined]
        assert client.drop_snapshot(before) and client.mcp_url is None
        assert client.end(reason="enough").truncated is False
        assert client.trajectory().reason == "enough"


def test_an_episode_is_played_with_async_methods() -> None:
    async def main() -> None:
        async with InProcessClient(Counter()) as client:
            await client.connect()
            await client.reset()
            before = await client.snapshot()
            await client.call_tool("add", {"by": 2})
            await client.step(CallToolAction(tool_name="add", arguments={}))
            assert (await client.state()).step_count == 2
            assert len((await client.trajectory()).steps) == 2
            await client.restore(before)
            assert (await client.end(truncated=True)).truncated
            assert await client.drop_snapshot(before)

    asyncio.run(main())


def test_a_pool_gets_environments_or_the_reason_why_there_are_none() -> None:
    of_class = pool_instances(Counter, [])
    assert not isinstance(of_class, str)
    with of_class.blocking() as one, of_class.blocking() as other:
        assert one.env is not other.env
    of_target = pool_instances(str(ECHO), [])
    assert not isinstance(of_target, str)
    with of_target.blocking() as client:
        assert client.list_tools()
    assert "settings are for a target that is a text" in str(pool_instances(Counter, ["start=1"]))
    assert "there is no such file or folder" in str(pool_instances("/nowhere", []))
