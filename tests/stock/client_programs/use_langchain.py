"""langchain-mcp-adapters: the tools of ``get_tools``, each call of which opens a session of its own."""

import asyncio

from contract import Job, Seen, job
from langchain_core.messages import ToolCall
from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    if url is None:
        client = MultiServerMCPClient({"env": {"transport": "stdio", **told.stdio}})
    else:
        client = MultiServerMCPClient({"env": {"transport": "http", "url": url, "headers": headers}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    seen = Seen(list(tools))
    for name, arguments in told.calls:
        message = await tools[name].ainvoke(ToolCall(name=name, args=arguments, id="1", type="tool_call"))
        seen.add(message.text, failed=message.status == "error")
    return seen


asyncio.run(main(job())).show()
