"""FastMCP alone, with the same tools: ``python fastmcp_tools.py TOOLS async|sync usual|tuned``.

``tuned``: replies are JSON rather than streams of events, and `mcp` does not list the tools before each call.
"""

from __future__ import annotations

import sys

import uvicorn
from fastmcp import FastMCP

count = 0


async def add(by: int = 1) -> int:
    """Add to the counter."""
    global count
    count += by
    return count


def add_sync(by: int = 1) -> int:
    """Add to the counter."""
    global count
    count += by
    return count


async def again(text: str, times: int = 1) -> str:
    """Give a text back several times."""
    return text * times


def schema_of(name: str) -> None:
    """Return None: no argument is mirrored in headers. Otherwise `mcp` would list the tools for each call."""


def main() -> None:
    tools, kind, tuning = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    mcp = FastMCP("tools")
    mcp.tool(add_sync if kind == "sync" else add, name="add")
    for number in range(1, tools):
        mcp.tool(again, name=f"tool_{number}")
    tuned = tuning == "tuned"
    if tuned:
        mcp._mcp_server.get_tool_input_schema = schema_of
    uvicorn.run(
        mcp.http_app(json_response=tuned),
        port=0,
        loop="uvloop",
        http="httptools",
        access_log=False,
        timeout_keep_alive=75,
        server_header=False,
        proxy_headers=False,
    )


if __name__ == "__main__":
    main()
