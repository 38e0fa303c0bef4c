"""Read a file that is not in the folder."""

from __future__ import annotations

from pathlib import Path

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Read a file that is not in the folder.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.words = (Path(__file__).parents[1] / "words.txt").read_text().split()

        @self.tool
        def word(number: int = 0) -> str:
            """Return a word."""
            return self.words[number % len(self.words)]
