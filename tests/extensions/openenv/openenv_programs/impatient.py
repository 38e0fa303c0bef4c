"""OpenEnv's client waits half a second for a tool that takes longer, then goes on; prints what it finds."""

import asyncio
import json
import sys
from typing import Any

from openenv import GenericEnvClient


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


async def main(url: str) -> None:
    async with GenericEnvClient(base_url=url, message_timeout_s=0.5) as env:
        await env.reset(episode_id="mine")
        await env.step(call("echo_message", message="one"))
        try:
            await env.step(call("echo_late", message="two", seconds=30))
            late = "answered"
        except TimeoutError:
            late = "timed out"
        after = await env.step(call("echo_message", message="three"))
        state = await env.state()
    print(json.dumps([late, after.observation["result"]["data"], state["episode_id"], state["step_count"]]))


asyncio.run(main(sys.argv[1]))
