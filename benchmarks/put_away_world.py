"""A world whose state is saved after each step: notes, of some kilobytes after a few steps."""

from __future__ import annotations

from mcpenv import MCPEnvironment


class Notes(MCPEnvironment):
    """Take notes."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    DURABILITY = "export"

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tool(self.note)

    def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
        """Begin without notes."""
        self.notes = []

    def note(self, message: str) -> int:
        """Take a note; return how many there are."""
        self.notes.append(message * 10)
        return len(self.notes)
