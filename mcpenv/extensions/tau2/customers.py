"""The customers of tau2's tasks, with whom agents speak."""

from __future__ import annotations

import json
import re

from mcpenv.extensions.users import User, UserCall, UserTools, UserTurn

_REQUEST = re.compile(r"\s*(\w+)\s*(?:\(\s*\)|(\{.*\}))?\s*")
"""A line that asks for a call: the name of a tool, and the arguments as JSON, if there are any."""


class Customer:
    """A user whose conversation is kept.

    Attributes:
        heard: the agent's messages.
        answers: the user's turns, as text.

    Args:
        played_by: answers.
    """

    def __init__(self, played_by: User) -> None:
        self.played_by = played_by
        self.heard: list[str] = []
        self.answers: list[str] = []

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Return the user's turn."""
        turn = await self.played_by.answer(message, tools)
        self.heard.append(message)
        self.answers.append(turn.text)
        return turn


class ObedientUser:
    """The user who first tells all wishes, and makes each call that a line of the agent's message names.

    Such a line is ``toggle_data``, or ``set_network_mode_preference {"mode": "4g_only"}``. The user leaves at the first
    message without such a line, except that the first message of all is always answered.

    Args:
        wishes: what the user wants.
    """

    def __init__(self, wishes: str) -> None:
        self.wishes = wishes
        self.told = False

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Make the calls that the message asks for, and tell what came of them."""
        known = [tool.name for tool in tools.listed]
        wanted = [found for line in message.splitlines() if (found := _REQUEST.fullmatch(line)) and found[1] in known]
        calls: list[UserCall] = []
        for each in wanted:
            try:
                calls.append(await tools.call(each[1], json.loads(each[2] or "{}")))
            except json.JSONDecodeError as error:
                calls.append(UserCall(each[1], {}, f"Error: the arguments are not JSON: {error}"))
        said = [f"{call.name}: {call.result}" for call in calls]
        if not self.told:
            how = "To have me do one of these, write it on a line of its own, with its arguments as JSON: "
            offer = [how + ", ".join(known)] if known else []
            said = [self.wishes, "I confirm whatever of this needs my confirmation.", *offer, *said]
        elif not calls:
            return UserTurn("That was all. Goodbye.", done=True)
        self.told = True
        return UserTurn("\n".join(said), calls=calls)
