"""The interface of users: `User`."""

from __future__ import annotations

from typing import Protocol

from mcpenv_client.types.users import UserTurn

from .user_tools import UserTools


class User(Protocol):
    """The user of one episode. Set ``env.user`` in ``reset``.

    Its state is part of the environment's: snapshots keep it, so its attributes must be data that can be pickled.
    """

    async def answer(self, message: str, tools: UserTools) -> UserTurn:
        """Answer the agent. Calls come one at a time. After a cancellation the user must be as before the call.

        Args:
            message: what the agent said; it may be empty.
            tools: the tools of the user.

        Raises:
            Exception: any exception is an error of the environment: the step fails, and the episode has no score.
                `UserFailed` keeps what the user did and spent until then.
        """
        ...


__all__ = ["User"]
