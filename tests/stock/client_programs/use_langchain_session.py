"""langchain-mcp-adapters with a session that is kept: the tools of ``load_mcp_tools``."""

import asyncio

from contract import Job, Seen, job
from langchain_core.messages import ToolCall
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    if url is None:
        client = MultiServerMCPClient({"env": {"transport": "stdio", **told.stdio}})
    else:
        client = MultiServerMCPClient({"env": {"transport": "http", "url": url, "headers": headers}})
    async with client.session("env") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        seen = Seen(list(tools))
        for name, arguments in told.calls:
            message = await tools[name].ainvoke(ToolCall(name=name, args=arguments, id="1", type="tool_call"))
            seen.add(message.text, failed=message.status == "error")
    return seen


asyncio.run(main(job())).show()
