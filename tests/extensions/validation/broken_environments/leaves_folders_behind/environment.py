"""Make a folder for each instance, and never remove it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mcpenv import MCPEnvironment


class Broken(MCPEnvironment):
    """Make a folder for each instance, and never remove it.

    Tools:
        As listed.

    Reward:
        None.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="broken-"))

        @self.tool
        def count() -> int:
            """Return the number of files."""
            return len(list(self.folder.iterdir()))
