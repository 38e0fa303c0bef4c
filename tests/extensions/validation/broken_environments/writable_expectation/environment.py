"""Keep the expected result in the folder of the agent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mcpenv import Evidence, MCPEnvironment, TaskSet, ToolError
from mcpenv.worlds import FilesWorld


class Broken(MCPEnvironment):
    """Keep the expected result in the folder of the agent.

    Tools:
        As listed.

    Reward:
        1 for the right number.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    tasks = TaskSet(
        [
            {
                "id": "copy",
                "prompt": "Write the number of planets into result.txt.",
                "oracle": [{"tool_name": "write_file", "arguments": {"path": "result.txt", "text": "8"}}],
            }
        ]
    )

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="broken-"))
        self.world = FilesWorld(self.folder)

        @self.tool
        def write_file(path: str, text: str) -> str:
            """Write a file of the folder."""
            place = (self.folder / path).resolve()
            if not place.is_relative_to(self.folder.resolve()) or place.is_dir():
                raise ToolError(f"{path} is no file of the folder; name one, such as result.txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            return "written"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        (self.folder / "expected.txt").write_text("8")
        (self.folder / "result.txt").write_text("")

    def verify(self, evidence: Evidence) -> bool:
        return (self.folder / "result.txt").read_text() == (self.folder / "expected.txt").read_text()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
