"""Have a tool without a description."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Have a tool without a description.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def echo(text: str) -> str:
            return text
