"""The backend that plays in Ray actors, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError, RayTaskError

from .actor import Actor
from .actor_cluster import connected, strategies
from .assignment import Share
from .backend import PoolError, all_of
from .clock import Clock
from .instances import Target
from .places import Place, PlacesBackend, PlacesRollout
from .playing import TIMEOUT
from .worker import Answers, Failed

logger = logging.getLogger("mcpenv")

BATCH = 64
"""Maximum shares of one call."""

ASK_AGAIN_S = 0.2
"""Seconds between two checks of an actor that Ray restarts."""


class ActorBackend(PlacesBackend):
    """Plays in Ray actors.

    Args:
        target: the environment; it must be importable in the actors, or defined in ``__main__``.
        size: the total number of environments.
        workers: the number of actors; None: one for each processor of the cluster, at most ``size``.
        settings: settings of the target.
        address: the cluster's address, if this program has not called ``ray.init``; None: as ``ray.init()``.
        actor_options: options of the actors, such as ``num_cpus``, ``resources`` or ``scheduling_strategy``.
        warm: as for `PlacesBackend`.
        start_timeout_s: seconds for an actor to be placed and to load the target.

    Raises:
        ValueError: an option controls retries.
    """

    kind = "a Ray actor"
    batch = BATCH
    advice = "Make it of plain data and functions of modules"

    def __init__(
        self,
        target: Target,
        size: int,
        *,
        workers: int | None = None,
        settings: Sequence[str] = (),
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        warm: int = 0,
        start_timeout_s: float = 120.0,
    ) -> None:
        for name in ("max_restarts", "max_task_retries", "retry_exceptions"):
            if name in (actor_options or {}):
                raise ValueError(f"actor_options has {name!r}, which the pool decides: a retried step is a step twice")
        super().__init__(size, warm)
        self.start_timeout_s = start_timeout_s
        self._target, self._settings, self._number, self._address = target, tuple(settings), workers, address
        self._options: dict[str, Any] = {
            "num_cpus": 0,
            "max_concurrency": size + warm + BATCH,
            **(actor_options or {}),
            "max_restarts": -1,
            "max_task_retries": 0,  # a retried step would be a step twice
        }
        self._cluster = AsyncExitStack()

    async def start(self) -> None:
        """Connect to Ray, or start it, and create the actors."""
        target = self.sendable(self._target, "the target", self.advice)
        await self._cluster.enter_async_context(connected(self._address))
        number = min(self.size, self._number or int(ray.cluster_resources().get("CPU", 1)) or 1)
        actor_class = ray.remote(Actor)
        for place, strategy in enumerate(strategies(self._options, number)):
            environments = self.environments_of(place, number)
            given = (target, self._settings, environments if self._warm else None)

            def make(strategy: Any, given: tuple[Any, ...] = given) -> Any:
                # A strategy from the user takes precedence.
                return actor_class.options(**{"scheduling_strategy": strategy, **self._options}).remote(*given)

            self._places.append(ActorPlace(make, strategy, environments, self.start_timeout_s, self.clock))
        await all_of(place.revive() for place in self._places)

    async def close(self) -> None:
        """Kill the actors; stop Ray if this object started it."""
        await super().close()
        await self._cluster.aclose()

    def pickled(self, given: Any) -> bytes:
        """Return what is sent to an actor."""
        return cast("bytes", cloudpickle.dumps(given))

    async def published(self, begin: bytes) -> Any:
        """Store the policy where each actor fetches it once, in a list so that Ray does not fetch it for each call."""
        return [await asyncio.to_thread(ray.put, begin)]


class ActorPlace(Place):
    """One actor, from the driver's side. Ray restarts it; if its node is lost, it is created again on any node.

    Args:
        make: makes Ray's handle with a scheduling strategy.
        strategy: the initial strategy.
        environments: the number of its environments.
        start_timeout_s: seconds for it to be placed and to load the target.
        clock: the clock of the deadlines.
    """

    def __init__(
        self, make: Callable[[Any], Any], strategy: Any, environments: int, start_timeout_s: float, clock: Clock
    ) -> None:
        super().__init__(environments)
        self._clock = clock
        self._make = make
        self._handle = make(strategy)
        self._start_timeout_s = start_timeout_s
        self._loaded = False

    @property
    def alive(self) -> bool:
        """True if it is loaded and no call was lost since."""
        return self._loaded

    async def revive(self) -> None:
        """Wait until it is loaded; Ray starts it."""
        give_up = time.monotonic() + self._start_timeout_s
        while not self._loaded:
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
            except RayError as error:
                self.died = _first_line(error)
                if isinstance(error, (ActorDiedError, ActorUnschedulableError)):  # permanently: its node is lost
                    ray.kill(self._handle)
                    self._handle = self._make("SPREAD")
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if text:
                raise PoolError(text)
            self._loaded = True

    async def play(
        self, rollout: PlacesRollout, shares: Sequence[Share], limit_s: float
    ) -> list[Answers | Failed] | None:
        """Play shares."""
        answers: list[Answers | Failed] | None = await self.ask(
            "play", rollout.number, rollout.sent, shares, limit_s=limit_s
        )
        return answers

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for it."""
        if self._loaded:
            getattr(self._handle, method).remote(*arguments)

    async def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method."""
        call = getattr(self._handle, method).remote(*arguments)
        try:
            return pickle.loads(await self._clock.limited(_future(call), self._clock.now() + limit_s))
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
        if self._loaded:
            logger.warning("pool: %s", self.died)
        self._loaded = False
        return None

    def kill(self) -> None:
        """End it permanently."""
        self._loaded = False
        ray.kill(self._handle)


def _future(call: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(call.future())


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
