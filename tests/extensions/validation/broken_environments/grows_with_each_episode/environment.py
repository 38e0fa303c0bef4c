"""Keep what each episode has said, for ever."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Keep what each episode has said, for ever.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.log: list[bytearray] = []

        @self.tool
        def say(text: str) -> str:
            """Say something."""
            self.log.append(bytearray(200_000))
            return text
