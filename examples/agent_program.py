"""Play as an agent that has the URL of an MCP server, and knows nothing of mcpenv or of episodes.

It uses the ``mcp`` package's own client and prints everything that the server sends.

Run it::

    python examples/agent_program.py                                     # starts a server of its own
    python examples/agent_program.py http://127.0.0.1:8000/mcp           # mcpenv run examples/write_an_environment.py
    AGENT_TOKEN=... python examples/agent_program.py URL 2026-07-28      # a bearer token, and the other protocol era
"""

import asyncio
import json
import os
import sys
from contextlib import ExitStack

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel
from serving import GUESS_NUMBER, served


def tell(what: str, answer: BaseModel) -> str:
    """Print an answer in full and return it as text."""
    text = answer.model_dump_json(by_alias=True, exclude_none=True)
    print(f"{what}: {text}")
    return text


async def play(url: str, era: str, token: str | None) -> None:
    """Guess the number by bisection; ``era`` is "legacy", or a protocol version from 2026 on."""
    seen: dict[str, str] = {}

    async def keep_headers(response: httpx2.Response) -> None:
        seen.update(response.headers)

    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=authorization, event_hooks={"response": [keep_headers]}, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=era) as client:
            print(f"protocol {client.protocol_version}")
            tell("tools", await client.list_tools())
            low, high, said = 1, 100, ""
            while "right" not in said:
                number = (low + high) // 2
                said = tell(f"guess {number}", await client.call_tool("guess", {"number": number}))
                low, high = (number + 1, high) if "higher" in said else (low, number - 1)
            # An agent does not know that the episode is over.
            tell("guess 1", await client.call_tool("guess", {"number": 1}))
    print(f"headers: {json.dumps(seen)}")


with ExitStack() as stack:
    address = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(served(GUESS_NUMBER)) + "/mcp"
    asyncio.run(play(address, sys.argv[2] if len(sys.argv) > 2 else "legacy", os.environ.get("AGENT_TOKEN")))
