"""Use the tools with the ``mcp`` package's own client, in both protocol eras, without mcpenv's client.

Run it::

    python examples/plain_mcp_client.py                             # starts a server of its own
    python examples/plain_mcp_client.py http://127.0.0.1:8000/mcp   # mcpenv run envs/echo_mcp
"""

import asyncio
import sys
from contextlib import ExitStack

from mcp import Client, MCPError
from serving import ECHO_MCP, served


async def use(url: str, mode: str) -> None:
    """List and call tools. ``mode`` is the client's name of the era: "legacy", or a version from 2026 on."""
    async with Client(url, mode=mode) as client:
        tools = (await client.list_tools()).tools
        print(f"{client.protocol_version}: {', '.join(tool.name for tool in tools)}")
        assert "echo_message" in [tool.name for tool in tools]

        result = await client.call_tool("echo_with_length", {"message": "hello"})
        assert result.structured_content == {"message": "hello", "length": 5}

        # Invalid arguments are a tool error, which a model can correct. An unknown tool is a protocol error.
        result = await client.call_tool("echo_message", {"message": 5})
        assert result.is_error
        try:
            await client.call_tool("shout", {"message": "hello"})
            raise AssertionError("there is no such tool")
        except MCPError as error:
            print(f"shout: {error.code} {error.message}")
            assert error.code == -32602


with ExitStack() as stack:
    address = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(served(ECHO_MCP)) + "/mcp"
    asyncio.run(use(address, "legacy"))
    asyncio.run(use(address, "2026-07-28"))
