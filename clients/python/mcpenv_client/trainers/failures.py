"""The error that an adapter raises where its library counts a failed episode by an exception."""

from __future__ import annotations

from mcpenv_client.errors import McpenvError
from mcpenv_client.types.status import Status
from mcpenv_client.types.turns import Ending


class EpisodeFailed(McpenvError):
    """Raised if an episode ended by no fault of the agent, so that it has no reward.

    Attributes:
        status: what became of the episode.
    """

    def __init__(self, status: Status, reason: str | None) -> None:
        super().__init__(f"the episode has no reward, its status is {status.code.value}: {reason or 'no reason given'}")
        self.status = status

    def __reduce__(self) -> tuple[type[EpisodeFailed], tuple[Status, str | None]]:
        """Return what is pickled. Some libraries run episodes in other processes."""
        return type(self), (self.status, str(self).partition(": ")[2])


def reward_of(ending: Ending) -> float:
    """Return the return of an episode; 0.0 if nothing was scored.

    Raises:
        EpisodeFailed: the status says that the rewards are not about the agent.
    """
    if not ending.status.usable:
        raise EpisodeFailed(ending.status, ending.reason)
    return ending.reward or 0.0


__all__ = ["EpisodeFailed", "reward_of"]
