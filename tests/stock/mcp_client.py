"""The ``mcp`` package's own client as a program of its own: lists, calls, and prints what it saw as one JSON object.

python mcp_client.py legacy http://127.0.0.1:8000/mcp
python mcp_client.py auto -- mcpenv run envs/echo_mcp --transport stdio
"""

import asyncio
import json
import os
import sys

from mcp import Client, MCPError, StdioServerParameters


async def use(server: str | StdioServerParameters, mode: str) -> dict[str, object]:
    async with Client(server, mode=mode) as client:
        echoed = await client.call_tool("echo_message", {"message": "grüße"})
        measured = await client.call_tool("echo_with_length", {"message": "hello"})
        refused = await client.call_tool("echo_message", {"message": 5})
        try:
            await client.call_tool("shout", {"message": "hello"})
            unknown = None
        except MCPError as error:
            unknown = error.code
        return {
            "protocol": client.protocol_version,
            "tools": [tool.name for tool in (await client.list_tools()).tools],
            "echoed": [block.model_dump(exclude_none=True) for block in echoed.content],
            "measured": measured.structured_content,
            "refused": refused.is_error,
            "unknown": unknown,
        }


era, target, *command = sys.argv[1:]
if target == "--":
    # The environment as it is: without one, the client hands its servers only a few variables.
    started = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ), cwd=os.getcwd())
    print(json.dumps(asyncio.run(use(started, era))))
else:
    print(json.dumps(asyncio.run(use(target, era))))
