"""Environments with a user: one with a script, one with a model that has a tool of its own."""

from __future__ import annotations

from typing import Any

from mcpenv import MCPEnvironment, TaskSet, ToolError
from mcpenv.extensions.users import ModelUser, ScriptedUser, add_user
from mcpenv_client.types.tasks import Task

LINES = ("And a second one.", "Now remove one.")


class Boxes(MCPEnvironment):
    """Count boxes as a user asks who says three things."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([Task(id="boxes", split="test", prompt="Add a box, please.")])

    def __init__(self) -> None:
        self.boxes = 0
        self.tool(self.change)
        add_user(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.boxes = 0
        self.user = ScriptedUser(LINES)

    def change(self, by: int) -> int:
        """Add boxes."""
        self.boxes += by
        return self.boxes

    def verify(self, evidence: Any) -> bool:
        return self.boxes == 1


class Phone(MCPEnvironment):
    """Help the owner of a phone, who alone can see and press its buttons."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([Task(id="data", split="test", prompt="Ask the user what is wrong.")])

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self.key, self.data_on = url, key, False
        add_user(self, self.switch_data, self.look)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.data_on = False
        self.user = ModelUser(
            self.url, "user-model", "Your phone has no data.", seed=seed, api_key_env=self.key, tries=2, backoff_s=0.0
        )

    def switch_data(self, on: bool) -> str:
        """Switch mobile data on or off."""
        if on and self.data_on:
            raise ToolError("It is on.")
        self.data_on = on
        return f"Data is {'on' if on else 'off'}."

    async def look(self) -> dict[str, bool]:
        """Look at the phone."""
        return {"data": self.data_on}

    def verify(self, evidence: Any) -> bool:
        return self.data_on
