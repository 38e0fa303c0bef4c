"""Have an oracle that does not solve the task."""

from __future__ import annotations

from mcpenv import Evidence, MCPEnvironment, TaskSet


class Broken(MCPEnvironment):
    """Have an oracle that does not solve the task.

    Tools:
        As listed.

    Reward:
        1 for the right bird.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    tasks = TaskSet(
        [
            {
                "id": "bird",
                "prompt": "Which bird is named in one of the drawers?",
                "metadata": {"answer": "kingfisher-4711"},
                "oracle": [
                    {"tool_name": "look", "arguments": {"drawer": 7}},
                    {"tool_name": "submit", "arguments": {"answer": "heron-1234"}},
                ],
            }
        ]
    )

    def __init__(self) -> None:
        self.answer = ""

        @self.tool
        def look(drawer: int = 1) -> str:
            """Look into a drawer."""
            return "a note: kingfisher-4711" if drawer == 7 else "nothing"

        @self.tool(terminal=True)
        def submit(answer: str) -> str:
            """Hand in the name of the bird, and end the episode."""
            self.answer = answer
            return "handed in"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.answer = ""

    def verify(self, evidence: Evidence) -> bool:
        assert evidence.task is not None
        return bool(self.answer == evidence.task.metadata["answer"])
