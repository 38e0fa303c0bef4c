"""mcp-use: its client and the session that it keeps for each server."""

import asyncio

from contract import Job, Seen, job
from mcp_use import MCPClient


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    if url is None:
        client = MCPClient({"mcpServers": {"env": told.stdio}})
    else:
        client = MCPClient({"mcpServers": {"env": {"url": url, "headers": headers}}})
    session = await client.create_session("env")
    try:
        seen = Seen([tool.name for tool in await session.list_tools()])
        for name, arguments in told.calls:
            result = await session.call_tool(name, arguments)
            seen.add("".join(getattr(block, "text", "") for block in result.content), failed=bool(result.isError))
    finally:
        await client.close_all_sessions()
    return seen


asyncio.run(main(job())).show()
