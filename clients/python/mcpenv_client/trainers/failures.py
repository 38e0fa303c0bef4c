"""The failures that adapters raise: of an episode, and of tools that a trainer cannot use."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from mcpenv_client.errors import McpenvError, ToolNotExpressible
from mcpenv_client.formats.names import WORDS
from mcpenv_client.scores import equal
from mcpenv_client.types.records import summed
from mcpenv_client.types.status import Status
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.turns import Ending

logger = logging.getLogger(__name__)

UNSCORED = "nothing scored it"
"""The reason for a finished episode without a reward: no rubric, verifier or tool gave one."""


class EpisodeFailed(McpenvError):
    """Raised if an episode has no reward: it failed by no fault of the agent, or nothing scored it.

    Attributes:
        status: the status of the episode.
    """

    def __init__(self, status: Status, reason: str | None) -> None:
        super().__init__(f"the episode has no reward, its status is {status.code.value}: {reason or 'no reason given'}")
        self.status = status

    def __reduce__(self) -> tuple[type[EpisodeFailed], tuple[Status, str | None]]:
        """Return the parts to pickle. Some libraries run episodes in other processes."""
        return type(self), (self.status, str(self).partition(": ")[2])


@dataclass(eq=False, repr=False)
class EndpointFailed(McpenvError):
    """Raised if the endpoint of a model cannot be reached, or answers with an error.

    The errors of httpx do not pickle: one would break the process pool of a trainer that runs agents in it.

    Attributes:
        url: the address.
        reason: the error, with the beginning of its body.
        http_status: the status of the answer; None without one.
    """

    url: str
    reason: str
    http_status: int | None = None

    def __str__(self) -> str:
        return f"the model's endpoint {self.url} failed: {self.reason}"


def rest_of(ending: Ending, given: Iterable[float]) -> float:
    """Return the part of an episode's return that is not among ``given``, the rewards of its turns.

    Raises:
        EpisodeFailed: the episode has no reward.
    """
    whole, given = reward_of(ending), list(given)
    return 0.0 if equal(whole, summed(given)) else summed((whole, *(-reward for reward in given)))


def reward_of(ending: Ending) -> float:
    """Return the return of an episode.

    Raises:
        EpisodeFailed: according to the status the rewards are not about the agent, or nothing was scored. A missing
            reward is not a reward of 0.
    """
    if not ending.status.usable:
        raise EpisodeFailed(ending.status, ending.reason)
    if ending.reward is None:
        raise EpisodeFailed(ending.status, UNSCORED)
    return ending.reward


def warn_of_mask(ending: Ending) -> None:
    """Log a warning if an episode has no reward, for trainers that mask it."""
    if ending.reward is None:
        reason = UNSCORED if ending.status.usable else ending.reason
        logger.warning("masked an episode: %s, %s", ending.status.code.value, reason)


def refuse_names(library: str, tools: Iterable[Tool]) -> None:
    """Raise if models' APIs refuse the name of a tool, for libraries that pass names on.

    Raises:
        ToolNotExpressible: APIs refuse a tool's name.
    """
    names = [tool.name for tool in tools if not WORDS.admits(tool.name)]
    if names:
        raise ToolNotExpressible(library, dict.fromkeys(names, "models' APIs refuse this name; rename it"))
