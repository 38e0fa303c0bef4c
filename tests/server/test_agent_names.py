"""What the records and lists of an orchestrator have of agents: their names, and why an episode was cut short."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient

INSIDE = threading.Event()


class World(MCPEnvironment):
    """A world whose tool can be slow."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.gate = threading.Event()

        @self.tool
        def look() -> str:
            """Look."""
            return "a wall"

        @self.tool
        def wait() -> str:
            """Wait for the end of the session."""
            INSIDE.set()
            self.gate.wait(20)
            return "waited"

        @self.tool(mode="production")
        def live() -> str:
            """Exist elsewhere."""
            return "live"

    def close(self) -> None:
        """Leave."""


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_record_names_the_client_of_the_agent_that_played_at_the_episode_s_address(
    tmp_path: Path, mode: str
) -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as env:
            await env.reset(episode_id="by an agent")
            info = Implementation(name="a-coder\n" + "x" * 100, version="1")
            async with Client(str(env.mcp_url), mode=mode, client_info=info) as agent:
                await agent.call_tool("look", {})
            (listed,) = (await asyncio.to_thread(httpx.get, f"{url}/sessions")).json()["sessions"]
            assert listed["agent"] == "a-coder" + "x" * 56
            await env.end()
            await env.reset(episode_id="by the orchestrator")
            await env.call_tool("look")

    with serving(World, ServerConfig(record=tmp_path)) as url:
        asyncio.run(main(url))
    agents = {episode.trajectory.episode_id: episode.agent for episode in read_episodes(tmp_path)}
    assert agents == {"by an agent": {"name": "a-coder" + "x" * 56}, "by the orchestrator": None}


@pytest.mark.parametrize("by_agent", [False, True])
def test_a_session_that_is_ended_during_a_call_is_cancelled_and_no_fault_of_its_tool(
    tmp_path: Path, by_agent: bool
) -> None:
    async def main(url: str) -> None:
        INSIDE.clear()
        async with EnvClient(url) as env:
            await env.reset()
            (listed,) = (await asyncio.to_thread(httpx.get, f"{url}/sessions")).json()["sessions"]
            calling = asyncio.ensure_future(_called(str(env.mcp_url)) if by_agent else env.call_tool("wait"))
            assert await asyncio.to_thread(INSIDE.wait, 20)
            async with httpx.AsyncClient() as other:
                await other.delete(f"{url}/sessions/{listed['session_id']}")
            await asyncio.wait([calling])
            assert by_agent or calling.exception() is not None

    with serving(World, ServerConfig(record=tmp_path)) as url:
        asyncio.run(main(url))
    (episode,) = read_episodes(tmp_path)
    assert (episode.trajectory.reason, episode.trajectory.truncated) == ("closed", False)
    assert episode.trajectory.status is not None and episode.trajectory.status.code == "cancelled"


async def _called(address: str) -> None:
    async with Client(address) as agent:
        await agent.call_tool("wait", {})


def test_the_refusal_of_an_unknown_tool_names_those_of_this_mode() -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as agent:
            with pytest.raises(MCPError, match=r"Unknown tool: 'liv'\. The tools are: look, wait$"):
                await agent.call_tool("liv", {})
        async with EnvClient(url) as env:
            await env.reset()
            step = await env.call_tool("liv")
            assert step.error is not None
            assert step.error.message == "Unknown tool: 'liv'. The tools are: look, wait"

    with serving(World) as url:
        asyncio.run(main(url))
