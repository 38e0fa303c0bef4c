"""Read any file of the machine."""

from __future__ import annotations

from pathlib import Path

from mcpenv import MCPEnvironment, ToolError


class Broken(MCPEnvironment):
    """Read any file of the machine.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.folder = Path(__file__).parent

        @self.tool
        def read_file(path: str = "README.md") -> str:
            """Read a file of the workspace."""
            file = self.folder / path
            if not file.is_file():
                raise ToolError(f"there is no file {path!r}; README.md is one")
            return file.read_text()
