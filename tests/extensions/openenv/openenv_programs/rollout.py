"""A program of OpenEnv's users: nothing in it knows which server it talks to."""

import sys

from openenv import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

url = sys.argv[1]
with GenericEnvClient(base_url=url).sync() as env:
    print("reset:", env.reset(seed=1).done)
    for word in ("to", "and fro"):
        step = env.step({"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": word}})
        print("step:", step.observation["result"]["data"], "| reward", step.reward, "| done", step.done)
    print("steps:", env.state()["step_count"])
with MCPToolClient(base_url=url).sync() as tools:
    print("tools:", ", ".join(tool.name for tool in tools.list_tools()))
    print("call:", tools.call_tool("echo_message", message="hello"))
    print("steps:", tools.state().step_count)
