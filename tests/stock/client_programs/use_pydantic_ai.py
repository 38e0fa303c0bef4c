"""Pydantic AI: an agent whose model is the SDK's own scripted one, and which calls what it is told."""

import asyncio

from contract import Job, Seen, job
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


async def main(told: Job) -> Seen:
    url, headers = told.url, told.headers
    toolset = MCPToolset(StdioTransport(**told.stdio)) if url is None else MCPToolset(url, headers=headers)
    calls = iter(told.calls)
    seen = Seen([])

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.tools = sorted(tool.name for tool in info.function_tools)
        for part in messages[-1].parts:
            if isinstance(part, ToolReturnPart):
                seen.add(part.content, failed=part.outcome != "success")
        following = next(calls, None)
        return ModelResponse(parts=[TextPart("done") if following is None else ToolCallPart(*following)])

    agent = Agent(FunctionModel(model), toolsets=[toolset], retries=len(told.calls))
    await agent.run("Use the tools.")
    return seen


asyncio.run(main(job())).show()
