"""FastMCP's client. 3.x speaks one era and is told no ``mode``."""

import asyncio

from contract import Job, Seen, job
from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main(told: Job) -> Seen:
    url, token = told.url, told.token
    options = {} if told.mode is None else {"mode": told.mode}
    client = Client(StdioTransport(**told.stdio), **options) if url is None else Client(url, auth=token, **options)
    async with client:
        seen = Seen([tool.name for tool in await client.list_tools()])
        for name, arguments in told.calls:
            result = await client.call_tool(name, arguments, raise_on_error=False)
            seen.add("".join(getattr(block, "text", "") for block in result.content), failed=result.is_error)
    return seen


asyncio.run(main(job())).show()
