"""Let agents of LangGraph play tasks of an environment, all at once, each at its own MCP address.

The orchestrator (`mcpenv_client`) begins and ends episodes over ``/ws`` and gets rewards; the agent sees tools alone.
Needs ``pip install ./clients/python langchain langchain-openai langchain-mcp-adapters``, a server,
and any OpenAI-compatible endpoint::

    mcpenv run envs/ledger_mcp --max-sessions 16
    python examples/rollouts_langgraph.py http://127.0.0.1:8000 --base-url http://127.0.0.1:11434/v1 --model qwen3

Prints one line for each episode. Its status says if the reward is about the agent: others are left out of the mean.
"""

import argparse
import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

from mcpenv_client import Conversation, Ending, EnvClient
from mcpenv_client.trainers.attempts import UNBEGUN, begun


async def rollout(url: str, row: dict[str, Any], model: ChatOpenAI, retries: int) -> Ending:
    """Let the agent play one episode, and return its ending."""
    async with EnvClient(url, capacity_timeout_s=60) as env, Conversation(env) as episode:
        opening = await begun(episode, row, retries)
        if opening is None:
            return UNBEGUN
        prompt = opening.messages[-1]["content"]
        cut = False
        server = MultiServerMCPClient({"env": {"transport": "http", "url": str(env.mcp_url)}})
        # One MCP session for the whole rollout. The tools of get_tools() open one for each call.
        async with server.session("env") as session:
            agent = create_agent(model, await load_mcp_tools(session))
            try:
                await agent.ainvoke({"messages": [("user", prompt)]}, {"recursion_limit": 40})
            except GraphRecursionError:
                cut = True
        return await episode.end(truncated=cut, reason="max_turns" if cut else None)


async def main(given: argparse.Namespace) -> None:
    """Play every task of a split."""
    model = ChatOpenAI(model=given.model, base_url=given.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    async with EnvClient(given.url) as env:
        rows = [row async for row in await env.rows(given.split)]
    plays = (rollout(given.url, row, model, given.retries) for row in rows)
    endings = await asyncio.gather(*plays, return_exceptions=True)  # an episode that fails costs no other one
    scored: list[float] = []
    for row, ending in zip(rows, endings, strict=True):
        if isinstance(ending, BaseException):
            print(f"{row['task_id']}: failed, {ending!r}")
            continue
        print(f"{row['task_id']}: {ending.status.code.value}, {ending.reward}")
        if ending.status.usable and ending.reward is not None:
            scored.append(ending.reward)
    print(f"mean of {len(scored)}: {sum(scored) / len(scored) if scored else None}")


arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("url", help="the server")
arguments.add_argument("--base-url", required=True, help="the endpoint of the model")
arguments.add_argument("--model", required=True)
arguments.add_argument("--split", default="train")
arguments.add_argument("--retries", type=int, default=2, help="of a reset, after the environment failed")
asyncio.run(main(arguments.parse_args()))
