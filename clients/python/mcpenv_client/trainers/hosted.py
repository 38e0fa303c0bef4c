"""The episode that a library's own agent plays at its MCP address."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mcpenv_client.client import EnvClient
from mcpenv_client.conversation import FAILED_STEP, Conversation
from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.rows import COLUMNS
from mcpenv_client.scores import whole_status
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.turns import Ending, Opening
from mcpenv_client.types.users import USER_MESSAGE

WAIT_FOR_SLOT_S = 600.0
"""Maximum seconds for which a reset waits for a session of a full server."""


class HostedEpisode:
    """An episode that an agent plays at its MCP address, and its session, for use in one event loop.

    Args:
        url: the server.
        client: arguments of `EnvClient`.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
    """

    def __init__(self, url: str, client: Mapping[str, Any] | None = None, *, mask_failed_steps: bool = True) -> None:
        self._mask_failed_steps = mask_failed_steps
        self._session = EnvClient(url, **{"capacity_timeout_s": WAIT_FOR_SLOT_S, **(client or {})})
        self._conversation = Conversation(self._session, max_turns=None, max_malformed=None, user_as_tool=True)

    @property
    def mcp_url(self) -> str:
        """The address of the tools, after `begin`."""
        assert self._session.mcp_url is not None
        return self._session.mcp_url

    async def begin(self, row: Mapping[str, Any]) -> Opening:
        """Begin the episode. ``messages`` of the opening ends with the prompt.

        Args:
            row: ``task``, or ``split`` and ``index``; and ``seed``. Other columns are ignored.

        Raises:
            WireError: the environment refused.
            ConnectionFailed: there is no connection.
        """
        named = {name: row[name] for name in COLUMNS if row.get(name) is not None}
        return await self._conversation.begin(named or None)

    @property
    def user_tool(self) -> str | None:
        """The name of the tool that speaks to the episode's user, after `begin`; None without a user."""
        return self._conversation.user_tool

    async def speak(self, text: str) -> str | None:
        """Send a message of the model to the episode's user, and return the answer.

        None: there is no user, or the episode is over. A failure is in the `Ending`.
        """
        if self.user_tool is None:
            return None
        function = {"name": self.user_tool, "arguments": {USER_MESSAGE: text}}
        turn = await self._conversation.act({"tool_calls": [{"type": "function", "function": function}]})
        return None if turn.done else str(turn.messages[0]["content"])

    async def over(self) -> bool:
        """Return True if the environment has ended the episode."""
        return (await self._session.wait(timeout_s=0)).done

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> Ending:
        """End the episode, and return its return with the parts of all rewards. Errors of the server are not raised."""
        ending = await self._conversation.end(truncated=truncated, reason=reason)
        if not ending.status.usable:
            return ending
        try:
            record = await self._session.trajectory()
        except (WireError, ConnectionFailed) as error:
            return dataclasses.replace(ending, reason=f"{ending.reason or ''} (its parts are lost: {error})".strip())
        ending = dataclasses.replace(ending, parts=_parts(record), steps=len(record.steps))
        status = whole_status(record)
        if self._mask_failed_steps and status is not None and not status.usable:
            return dataclasses.replace(ending, reward=None, status=status, reason=FAILED_STEP)
        return ending

    async def close(self) -> None:
        """End the session, and an episode that is not over."""
        await self._session.close()

    def abandon(self) -> None:
        """Drop the connection at once, where nothing can be awaited any more. The server ends the session as lost."""
        self._session.abandon()


def _parts(record: Trajectory) -> dict[str, float]:
    """Return the sums of the parts of an episode's rewards."""
    parts: Counter[str] = Counter()
    for reward in (*(step.reward for step in record.steps), record.end_reward):
        parts.update(reward.components if reward else {})
    return dict(parts)
