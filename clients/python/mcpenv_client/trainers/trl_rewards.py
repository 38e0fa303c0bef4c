"""Reward functions of a user's own beside the episodes' rewards in TRL."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mcpenv_client.types.status import Status, StatusCode

from .trl_episode import TrainedEpisode


def masked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that gives None to episodes whose status is not about the agent.

    TRL adds up the rewards of an episode that are not None. So a function of your own alone would reward an episode of
    a failed environment, for which the environment gives None, and its group would be compared with that.

    Args:
        function: sync or async, as `GRPOTrainer` takes it. It is called with all episodes.

    Raises (when called):
        ValueError: the trainer has neither environments of `McpenvSpec` nor `McpenvRollouts`.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):

        async def later(**given: Any) -> list[float | None]:
            return _without_failed(await function(**given), given)

        return _named(later, inner)

    def rewards(**given: Any) -> list[float | None]:
        return _without_failed(function(**given), given)

    return _named(rewards, inner)


def _named(made: Callable[..., Any], inner: Any) -> Callable[..., Any]:
    """Give a function the name of another, under which TRL logs its rewards."""
    made.__name__ = made.__qualname__ = getattr(inner, "__name__", type(inner).__name__)
    return made


def _usable(episode: TrainedEpisode) -> bool:
    """End an episode, unless it has ended, and return True if its status is about the agent."""
    episode.get_reward()
    return episode.ending.status.usable


def _without_failed(rewards: list[float | None], given: Mapping[str, Any]) -> list[float | None]:
    if given.get("environments") is not None:
        usable = [not isinstance(each, TrainedEpisode) or _usable(each) for each in given["environments"]]
    elif "episode_status" in given:
        usable = [Status(StatusCode(code)).usable for code in given["episode_status"]]
    else:
        raise ValueError("masked() is for episodes of McpenvSpec and McpenvRollouts; this trainer has neither")
    return [reward if keep else None for reward, keep in zip(rewards, usable, strict=True)]
