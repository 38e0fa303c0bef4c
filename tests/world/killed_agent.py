"""An agent at an episode's address, which is killed while its call runs.

    python killed_agent.py URL ERA INSIDE GATE

It prints "answered" for each answer that it got.
"""

from __future__ import annotations

import asyncio
import sys

from mcp.client.client import Client


async def main(url: str, era: str, inside: str, gate: str) -> None:
    async with Client(url, mode=era) as agent:
        for _ in range(2):
            await agent.call_tool("add", {"by": 1})
            print("answered", flush=True)
        await agent.call_tool("hold", {"inside": inside, "gate": gate})


asyncio.run(main(*sys.argv[1:]))
