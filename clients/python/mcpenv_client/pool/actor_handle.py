"""One Ray actor from the driver's side: its loading, its calls, and their losses."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError, RayTaskError

from mcpenv_client.types.records import StepResult

from .assignment import Share
from .backend import LOST, PoolError, lost_result
from .episode import Outcome
from .playing import TIMEOUT

logger = logging.getLogger("mcpenv")

ASK_AGAIN_S = 0.2
"""Seconds between two checks of an actor that Ray restarts."""


@dataclass(eq=False)
class Waiting:
    """A share that waits for its answer.

    Attributes:
        share: the share to play.
        answer: set to the outcomes of its episodes.
        attempts: the number of its calls that were lost.
    """

    share: Share
    answer: asyncio.Future[list[Outcome]]
    attempts: int = 0

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless it is already answered."""
        if not self.answer.done():
            self.answer.set_exception(error)


class ActorHandle:
    """One actor, from the driver's side. Ray restarts it; if its node is lost, it is created again on any node.

    Args:
        make: makes Ray's handle with a scheduling strategy.
        strategy: the initial strategy.
        environments: the numbers of its environments in the pool.
        start_timeout_s: seconds for it to be placed and to load the target.

    Attributes:
        alive: True if it is loaded and no call was lost since.
        calls: its running batches, oldest first.
        died: the reason of the last lost call.
        lost: the numbers of environments with an unanswered last step that may have run.
    """

    def __init__(self, make: Callable[[Any], Any], strategy: Any, environments: int, start_timeout_s: float) -> None:
        self._make = make
        self._handle = make(strategy)
        self.environments = environments
        self._start_timeout_s = start_timeout_s
        self.alive = False
        self.calls: list[list[Waiting]] = []
        self.died = ""
        self.lost: set[int] = set()

    @property
    def plays_again(self) -> bool:
        """True while it plays an episode of a lost call, without other episodes."""
        return any(waiting.attempts for batch in self.calls for waiting in batch)

    async def revive(self) -> None:
        """Wait until it is loaded; Ray starts it.

        Raises:
            PoolError: the target cannot be loaded, or Ray does not start it in time.
        """
        give_up = time.monotonic() + self._start_timeout_s
        while not self.alive:
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                raise PoolError(
                    f"a Ray actor was not ready in {self._start_timeout_s:g} s ({self.died or 'not placed'}); "
                    "see if the cluster has what actor_options ask for"
                )
            try:
                text = await asyncio.wait_for(_future(self._handle.load.remote()), left_s)
            except asyncio.TimeoutError:
                continue
            except RayTaskError as error:
                raise PoolError(f"a Ray actor failed while it loaded the target: {error}") from error
            except (ActorDiedError, ActorUnschedulableError) as error:  # permanently: its node is lost
                self.died = _first_line(error)
                ray.kill(self._handle)
                self._handle = self._make("SPREAD")
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            except RayError as error:
                self.died = _first_line(error)
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if text:
                raise PoolError(text)
            self.alive = True

    async def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method and return its answer; None if the actor was lost, or was killed at its deadline.

        Raises:
            PoolError: the method itself failed.
        """
        call = getattr(self._handle, method).remote(*arguments)
        try:
            return pickle.loads(await asyncio.wait_for(_future(call), limit_s))
        except asyncio.CancelledError:
            ray.cancel(call)
            raise
        except asyncio.TimeoutError:
            self.died = f"its actor did not answer for {limit_s:g} s and was killed ({TIMEOUT})"
            ray.kill(self._handle, no_restart=False)
        except RayTaskError as error:
            raise PoolError(f"a Ray actor cannot do what was asked: {error}") from error
        except RayError as error:
            self.died = f"its actor was lost: {_first_line(error)}"
        if self.alive:
            logger.warning("pool: %s", self.died)
        self.alive = False
        return None

    def lose(self, mine: Sequence[tuple[int, Any]]) -> list[StepResult[Any]]:
        """Mark environments as lost until their reset, and return their results."""
        self.lost |= {i for i, _ in mine}
        return [lost_result(LOST, self.died) for _ in mine]

    def kill(self) -> None:
        """End it permanently."""
        self.alive = False
        ray.kill(self._handle)


def _future(call: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(call.future())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
