"""Ship a key of a cloud."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Ship a key of a cloud.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def echo(text: str) -> str:
            """Return the text."""
            return text
