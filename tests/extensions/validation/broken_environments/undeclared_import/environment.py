"""Import a distribution that the project does not declare."""

from __future__ import annotations

import pytest

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Import a distribution that the project does not declare.

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
            return str(pytest.__name__) + text
