"""The failures that adapters raise: of an episode, and of tools that a trainer cannot take."""

from __future__ import annotations

from collections.abc import Iterable

from mcpenv_client.errors import McpenvError, ToolNotExpressible
from mcpenv_client.formats.names import WORDS
from mcpenv_client.types.status import Status
from mcpenv_client.types.tools import Tool
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


def refuse_names(library: str, tools: Iterable[Tool]) -> None:
    """Raise if models' APIs refuse the name of a tool, for libraries that pass names on.

    Raises:
        ToolNotExpressible: they do.
    """
    names = [tool.name for tool in tools if not WORDS.admits(tool.name)]
    if names:
        raise ToolNotExpressible(library, dict.fromkeys(names, "models' APIs refuse this name; rename it"))


__all__ = ["EpisodeFailed", "refuse_names", "reward_of"]
