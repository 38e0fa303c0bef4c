"""The agent as a program, with the ``mcp`` package's client and without mcpenv. Plays `Counting` as the prompt says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

prompt = sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read()
assert prompt == os.environ["MCPENV_PROMPT"]
assert sys.argv[1] == os.environ["MCPENV_MCP_URL"]
assert len(sys.argv) <= 2 or sys.stdin.read() == ""
print("variables:", sorted(name for name in os.environ if name.startswith("MCPENV")))
print("prompt:", prompt, flush=True)
how = prompt.partition(":")[0]
if how == "slow":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
    print("child with:", sys.argv[1], flush=True)
    time.sleep(600)

from mcp import Client  # noqa: E402 - it takes a second


async def play(url: str) -> None:
    async with Client(url) as client:
        print("tools:", sorted(tool.name for tool in (await client.list_tools()).tools))
        for _ in range({"solve": 2, "too_many": 9}.get(how, 0)):
            print("counter:", (await client.call_tool("add", {"by": 1})).content)


asyncio.run(play(sys.argv[1]))
if how == "crash":
    sys.exit("I am lost")
