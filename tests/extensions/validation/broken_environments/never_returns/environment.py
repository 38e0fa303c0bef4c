"""Have a tool that never returns."""

from __future__ import annotations

import threading

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Have a tool that never returns.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def wait() -> str:
            """Wait for a signal that nobody sends."""
            threading.Event().wait()
            return "over"
