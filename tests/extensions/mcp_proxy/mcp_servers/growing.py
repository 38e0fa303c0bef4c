"""A server of 2026-07-28 that tells its subscribers of a tool that it gets: an environment of mcpenv."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Growing(MCPEnvironment):
    """Gets a tool more."""

    def __init__(self) -> None:
        @self.tool
        def grow() -> str:
            """Get another tool."""

            def grown() -> str:
                """Be there."""
                return "grown"

            self.tool(grown)
            return "grew"

        @self.tool
        def idle() -> str:
            """Do nothing."""
            return "idle"


if __name__ == "__main__":
    Growing().run("stdio", show_banner=False)
