"""The OpenAI Agents SDK without a model: its MCP server class, as an agent uses it."""

import asyncio

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from contract import Job, Seen, job


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    over_http = url is not None
    async with (
        MCPServerStreamableHttp({"url": url, "headers": headers}) if over_http else MCPServerStdio(told.stdio) as server
    ):
        seen = Seen([tool.name for tool in await server.list_tools()])
        for name, arguments in told.calls:
            result = await server.call_tool(name, arguments)
            failed = getattr(result, "is_error", None) or getattr(result, "isError", False)
            seen.add("".join(getattr(block, "text", "") for block in result.content), failed=bool(failed))
    return seen


asyncio.run(main(job())).show()
