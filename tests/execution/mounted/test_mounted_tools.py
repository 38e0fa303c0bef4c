"""Test the settings of a mounted server's tools: names, descriptions, hints, bound arguments, ends and limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastmcp import Client, Context, FastMCP

from mcpenv import MCPEnvironment
from mcpenv.errors import InvalidTool

server = FastMCP("notes")


@server.tool(annotations={"readOnlyHint": True})
def read(folder: str, name: str = "first") -> str:
    """Read a note."""
    return f"{folder}/{name}"


@server.tool
async def stop(ctx: Context, seconds: float = 0.0) -> str:
    """Stop."""
    await ctx.info("stopping")
    await asyncio.sleep(seconds)
    return "stopped"


class Notes(MCPEnvironment):
    """Notes of one folder."""

    def __init__(self) -> None:
        super().__init__(
            server,
            tools={
                "read": {
                    "name": "peek",
                    "description": "Peek.",
                    "annotations": {"openWorldHint": False},
                    "arguments": {"folder": "mine"},
                },
                "stop": {"terminal": True, "timeout_s": 0.2},
            },
        )

        @self.tool(name="read")
        def own() -> str:
            """Read nothing."""
            return "own"


def test_a_tool_has_another_name_description_hints_and_fewer_arguments() -> None:
    with Notes() as env:
        tools = {tool.name: tool for tool in env.list_tools()}
        assert set(tools) == {"peek", "stop", "read"}
        peek = tools["peek"]
        assert (peek.description, peek.annotations) == ("Peek.", {"readOnlyHint": True, "openWorldHint": False})
        assert list(peek.input_schema["properties"]) == ["name"] and not peek.input_schema["required"]


def test_a_bound_argument_cannot_be_set() -> None:
    with Notes() as env:
        env.reset()
        assert env.call_tool("peek", {"name": "a"}).text == "mine/a"
        assert env.call_tool("peek", {"folder": "yours"}).text == "mine/first"
        assert env.call_tool("read").text == "own"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_agents_see_the_same(mode: str) -> None:
    async def main(env: Any) -> None:
        async with Client(env.mcp, mode=mode) as client:
            assert {tool.name for tool in await client.list_tools()} == {"peek", "stop", "read"}
            assert (await client.call_tool("peek", {"name": "a"})).data == "mine/a"
            assert (await client.call_tool("read")).data == "own"

    env = Notes()
    asyncio.run(main(env))
    env.close()


def test_a_terminal_tool_ends_the_episode() -> None:
    with Notes() as env:
        env.reset()
        last = env.call_tool("stop")
        assert (last.text, last.terminated) == ("stopped", True)


def test_a_tool_has_a_limit_of_its_own() -> None:
    with Notes() as env:
        env.reset()
        late = env.call_tool("stop", {"seconds": 60})
        assert late.error is not None and late.error.message == "stop: no result within 0.2 s"
        assert late.truncated


def test_two_names_can_be_swapped() -> None:
    class Swapped(MCPEnvironment):
        """Notes the other way round."""

        def __init__(self) -> None:
            super().__init__(server, tools={"read": {"name": "stop"}, "stop": {"name": "read"}})

    with Swapped() as env:
        env.reset()
        assert env.call_tool("read").text == "stopped"
        assert env.call_tool("stop", {"folder": "a"}).text == "a/first"


def test_an_own_tool_with_the_new_name_of_a_servers_tool_is_refused() -> None:
    class Taken(MCPEnvironment):
        """Notes with a clash."""

        def __init__(self) -> None:
            super().__init__(server, tools={"read": {"name": "peek"}})

            @self.tool
            def peek() -> str:
                """Peek."""
                return ""

    env = Taken()
    with pytest.raises(InvalidTool, match="'peek': FastMCP server 'notes' has a tool of that name"):
        env.list_tools()
    env.close()
