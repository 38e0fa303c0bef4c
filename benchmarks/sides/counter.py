"""One FastMCP server with two uses: mounted in an environment (``counter.py:Mounted``), or served over stdio."""

from __future__ import annotations

from fastmcp import FastMCP

from mcpenv import MCPEnvironment


def build() -> FastMCP:
    """Return a server with a counter of its own."""
    server = FastMCP("counter")
    count = 0

    @server.tool
    async def add(by: int = 1) -> int:
        """Add to the counter."""
        nonlocal count
        count += by
        return count

    return server


class Mounted(MCPEnvironment):
    """The counter, mounted."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(build())


if __name__ == "__main__":
    build().run(show_banner=False)
