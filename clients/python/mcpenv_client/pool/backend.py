"""The interface of a pool's backends, which play episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.status import Status, StatusCode

from .assignment import PlayError, Share
from .episode import Begin, Outcome

T = TypeVar("T")

LOST = Status(StatusCode.TRANSPORT_LOST, None, True)
"""The status of an episode after the loss of its process or server."""

CLOSED = "the pool was closed while it played"


class PoolError(PlayError):
    """Raised if a pool cannot be created or used as requested, or a play cannot go on.

    ``__cause__`` is the reason, if there is one: for example the error of the source of tasks, or the `WireError` of a
    task that an environment refuses.

    Attributes:
        finished, unfinished: the episodes of the play that it ended, as of `PolicyFailed`.
    """


class JournalError(PoolError):
    """Raised in a policy if the pool's checkpoint cannot go on with its episode. It ends the play.

    Attributes:
        again: True to begin the episode again instead.
    """

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


class Rollout(Protocol):
    """One policy, with its limits, on a backend. Several run at once."""

    @property
    def at_once(self) -> int:
        """The number of concurrent shares that occupy all places, if no other rollout runs."""
        ...

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share, once. A lost place is replaced, and its episodes have the status `LOST`.

        Raises:
            WireError: the assignment cannot be played.
            PoolError: the share has several episodes, and the environment cannot be saved.
        """
        ...

    async def close(self) -> None:
        """Stop its shares. Their callers are cancelled already."""
        ...


class Backend(Protocol):
    """A place that plays episodes. Rollouts run at once; one call of `reset` or `step` runs without any.

    Attributes:
        size: the number of environments for `reset` and `step`.
    """

    async def start(self) -> None:
        """Start the processes, actors or connections.

        Raises:
            PoolError: it cannot be started.
        """
        ...

    async def close(self) -> None:
        """End everything that was started. Safe to call twice."""
        ...

    async def begin(self, begin: Begin) -> Rollout:
        """Return a new rollout.

        Raises:
            PoolError: the policy cannot be used here.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Let the starts and calls of episodes wait, and stop their time limits; False: continue."""
        ...

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset the environments with options other than None; return the results in that order, with None between."""
        ...

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment with an action other than None."""
        ...


class Direct(Protocol):
    """A backend that plays shares without a preparation of its own."""

    @property
    def at_once(self) -> int:
        """The number of its places."""
        ...

    async def play(self, begin: Begin, share: Share) -> list[Outcome]:
        """Play one share, as `Rollout.play`."""
        ...


class DirectRollout:
    """The rollout of a `Direct` backend.

    Args:
        backend: plays it.
        begin: its policy.
    """

    def __init__(self, backend: Direct, begin: Begin) -> None:
        self._backend, self._begin = backend, begin

    @property
    def at_once(self) -> int:
        """The number of places."""
        return self._backend.at_once

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share."""
        return await self._backend.play(self._begin, share)

    async def close(self) -> None:
        """Do nothing: its callers stopped its shares."""


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of concurrent calls, in order. If one raises, wait for the others first."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)


async def in_shares(
    items: Sequence[Any],
    number: int,
    ask: Callable[[int, Sequence[tuple[int, Any]]], Coroutine[Any, Any, Sequence[StepResult[Any]]]],
) -> list[StepResult[Any] | None]:
    """Request the results of items that are not None from several places. Place ``i % number`` handles item ``i``.

    Args:
        items: the request for each environment.
        number: the number of places.
        ask: returns the results of one place for its pairs of index and item.
    """
    results: list[StepResult[Any] | None] = [None] * len(items)
    shares: list[list[tuple[int, Any]]] = [[] for _ in range(number)]
    for index, item in enumerate(items):
        if item is not None:
            shares[index % number].append((index, item))
    asked = [(place, mine) for place, mine in enumerate(shares) if mine]
    for (_, mine), answers in zip(asked, await all_of(ask(place, mine) for place, mine in asked), strict=True):
        for (index, _), answer in zip(mine, answers, strict=True):
            results[index] = answer
    return results


def step_failed(error: WireError | ConnectionFailed) -> StepResult[Any]:
    """Return the result of a step or reset in which the environment failed: the episode is over.

    Raises:
        WireError: the error has no status, because the environment refused the request.
    """
    if isinstance(error, WireError) and error.status is None:
        raise error
    return lost_result(error.status or LOST, str(error))


def lost_result(status: Status, text: str) -> StepResult[Any]:
    """Return the result of a step after the loss of its environment."""
    plain = status.to_plain()
    info = {"status": plain, "episode_status": plain, "error": text}
    return StepResult(Observation(truncated=True, info=info), truncated=True, info=info)
