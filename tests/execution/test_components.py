"""Test the resources, prompts and completions that an environment offers (`MCPEnvironment.mcp_provider`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.prompts import Prompt
from fastmcp.resources import Resource
from fastmcp.server.providers import LocalProvider
from mcp import MCPError
from mcp_types import PromptReference

from mcpenv import MCPEnvironment
from mcpenv.execution.components import CompletingProvider
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient


class Board(CompletingProvider):
    """Offers what stands on the board of one instance."""

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env

    async def _list_resources(self) -> Sequence[Resource]:
        return [Resource.from_function(lambda: ", ".join(self._env.words), uri="board://words", name="words")]

    async def _list_prompts(self) -> Sequence[Prompt]:
        def go_on(word: str) -> str:
            return f"Go on after {word}."

        return [Prompt.from_function(go_on, name="go_on")]

    async def complete(self, ref: Any, argument: Any, context: Any) -> Any:
        return [word for word in self._env.words if word.startswith(argument.value)]


class Words(MCPEnvironment):
    """A board of words."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.words: list[str] = ["start"]
        self.mcp_provider = Board(self)

        @self.tool
        def write(word: str) -> str:
            """Write a word."""
            self.words.append(word)
            return "written"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_environment_offers_resources_prompts_and_completions_of_its_own_state(mode: str) -> None:
    async def main(url: str, other: str) -> None:
        async with Client(url, mode=mode) as client, Client(other, mode=mode) as second:
            await client.call_tool("write", {"word": "stop"})
            assert [str(each.uri) for each in await client.list_resources()] == ["board://words"]
            assert (await client.read_resource("board://words"))[0].text == "start, stop"
            assert (await second.read_resource("board://words"))[0].text == "start"
            assert [each.name for each in await client.list_prompts()] == ["go_on"]
            content: Any = (await client.get_prompt("go_on", {"word": "stop"})).messages[0].content
            assert content.text == "Go on after stop."
            reference = PromptReference(type="ref/prompt", name="go_on")
            assert (await client.complete(reference, {"name": "word", "value": "st"})).values == ["start", "stop"]
            with pytest.raises(MCPError):
                await client.read_resource("board://nothing")

    with serving(Words) as url, EnvClient(url).sync() as one, EnvClient(url).sync() as two:
        asyncio.run(main(one.reset().info["mcp_url"], two.reset().info["mcp_url"]))


def test_a_client_of_plain_mcp_reads_before_it_has_called() -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            assert len(await client.list_resources()) == 1
            assert (await client.read_resource("board://words"))[0].text == "start"

    with serving(Words) as url:
        asyncio.run(main(url))


def test_any_provider_of_fastmcp_will_do_also_beside_a_mounted_server() -> None:
    mounted = FastMCP("mounted")
    mounted.resource("mounted://one")(lambda: "of the mounted server")
    local = LocalProvider()
    local.resource("own://one")(lambda: "of the environment")

    class Both(MCPEnvironment):
        """Resources of two."""

        mcp_provider = local

        def __init__(self) -> None:
            super().__init__(mounted)

    async def main(env: Any) -> None:
        async with Client(env.mcp) as client:
            assert {str(each.uri) for each in await client.list_resources()} == {"mounted://one", "own://one"}
            assert (await client.read_resource("own://one"))[0].text == "of the environment"
            assert (await client.read_resource("mounted://one"))[0].text == "of the mounted server"

    env = Both()
    asyncio.run(main(env))
    env.close()
