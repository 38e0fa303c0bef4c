"""A server whose tools show what passes through a proxy. Its state is in the process."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.types import Audio, Image
from mcp_types import TextContent

server = FastMCP("everything", version="1.2.3", instructions="Use the counter.")
count = 0


@server.tool
def add(by: int = 1) -> int:
    """Add to the counter."""
    global count
    count += by
    return count


@server.tool(annotations={"readOnlyHint": True})
def read() -> int:
    """Read the counter."""
    return count


@server.tool
def fail(text: str) -> str:
    """Fail."""
    raise ToolError(text)


@server.tool
async def work(ctx: Context, steps: int = 2) -> str:
    """Report progress and log."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    await ctx.info("nearly there")
    return "worked"


@server.tool
def picture() -> Image:
    """Draw."""
    return Image(data=b"\x89PNG\r\n\x1a\n", format="png")


@server.tool
def sound() -> Audio:
    """Play."""
    return Audio(data=b"RIFF", format="wav")


@server.tool
def structured() -> ToolResult:
    """Return structured content with metadata."""
    return ToolResult(
        content=[TextContent(type="text", text="see below")], structured_content={"a": [1, None]}, meta={"k": "v"}
    )


@server.tool
def variables() -> dict[str, Any]:
    """Return the variables and the working directory of the process."""
    return {"names": sorted(os.environ), "cwd": os.getcwd(), "arguments": sys.argv[1:]}


@server.tool
def process() -> int:
    """Return the id of the process."""
    return os.getpid()


@server.tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool
def die() -> None:
    """End the process."""
    os._exit(3)


@server.tool(annotations={"idempotentHint": True})
def die_once(path: str) -> str:
    """End the process at the first call."""
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(4)
    return "alive"


if __name__ == "__main__":
    server.run(show_banner=False)
