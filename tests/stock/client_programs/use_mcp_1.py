"""The ``mcp`` package, 1.x: streams, and a session over them."""

import asyncio
from contextlib import AsyncExitStack

from contract import Job, Seen, job
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client  # type: ignore[attr-defined]  # gone in 2.x


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    async with AsyncExitStack() as stack:
        if url is None:
            streams = await stack.enter_async_context(stdio_client(StdioServerParameters(**told.stdio)))
        else:
            streams = await stack.enter_async_context(streamablehttp_client(url, headers=headers))
        session = await stack.enter_async_context(ClientSession(*streams[:2]))
        await session.initialize()
        seen = Seen([tool.name for tool in (await session.list_tools()).tools])
        for name, arguments in told.calls:
            result = await session.call_tool(name, arguments)
            failed: bool = result.isError  # type: ignore[attr-defined]  # another name in 2.x
            seen.add("".join(getattr(block, "text", "") for block in result.content), failed=failed)
    return seen


asyncio.run(main(job())).show()
