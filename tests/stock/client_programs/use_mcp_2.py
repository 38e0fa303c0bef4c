"""The ``mcp`` package, 2.x."""

import asyncio

import httpx2
from contract import Job, Seen, job
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main(told: Job) -> Seen:
    url, headers, mode = told.url, told.headers, told.mode or "auto"
    if url is None:
        client = Client(StdioServerParameters(**told.stdio), mode=mode)
    elif not headers:
        client = Client(url, mode=mode)
    else:
        client = Client(streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers)), mode=mode)
    async with client:
        seen = Seen([tool.name for tool in (await client.list_tools()).tools])
        for name, arguments in told.calls:
            result = await client.call_tool(name, arguments)
            seen.add("".join(getattr(block, "text", "") for block in result.content), failed=bool(result.is_error))
    return seen


asyncio.run(main(job())).show()
