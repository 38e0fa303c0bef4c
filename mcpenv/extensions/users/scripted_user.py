"""The user who follows a script: `ScriptedUser`."""

from __future__ import annotations

from collections.abc import Sequence

from mcpenv_client.types.users import UserTurn

from .user_tools import UserTools


class ScriptedUser:
    """The user who answers with one line after the other, whatever the agent writes, and then leaves.

    The first request of the user is usually the task's prompt, not one of the lines.

    Attributes:
        said: the number of lines used so far.

    Args:
        lines: the answers, in order.
        goodbye: the answer with which the user leaves.
    """

    def __init__(self, lines: Sequence[str], *, goodbye: str = "That was all. Goodbye.") -> None:
        self.lines = tuple(lines)
        self.goodbye = goodbye
        self.said = 0

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Return the next line; after the last one, the goodbye."""
        if self.said >= len(self.lines):
            return UserTurn(self.goodbye, done=True)
        self.said += 1
        return UserTurn(self.lines[self.said - 1])
