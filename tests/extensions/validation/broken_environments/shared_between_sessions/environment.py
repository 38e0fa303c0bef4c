"""Keep the notes of all sessions in one list of the module."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Keep the notes of all sessions in one list of the module.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def write(text: str) -> int:
            """Write a note, and return how many there are."""
            NOTES.append(text)
            return len(NOTES)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        NOTES.clear()


NOTES: list[str] = []
