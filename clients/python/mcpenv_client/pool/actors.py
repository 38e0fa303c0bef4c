"""The backend that plays in Ray actors, on this machine or on a cluster."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import ray
from ray import cloudpickle

from mcpenv_client.types.records import StepResult

from .actor import BATCH_S, Actor
from .actor_cluster import connected, strategies
from .actor_handle import ActorHandle, Waiting
from .assignment import Limits, Played, Share
from .backend import CLOSED, LOST, PoolError, all_of, in_shares, lost_result, refuse_unused_warm
from .episode import Outcome, Policy, is_async
from .instances import Target
from .playing import changed, played_of
from .worker import Begin, Failed

GRACE_S = 5.0
"""Seconds after the time limit of its episodes for an actor to report the timeout itself."""

BATCH = 64
"""Maximum shares of one call."""

IN_FLIGHT = 2
"""Concurrent calls of an actor, so that it never waits for the next."""

UNKNOWN_S = 0.02
"""The assumed duration of a share in seconds, before one was measured."""


class ActorBackend:
    """Plays in actors that hold many environments each. A call has a batch of shares, or one step of many.

    Ray restarts an actor that died, but repeats no call. Each share of a lost call is begun again in an actor without
    other shares, so that only the share that ends its actor is lost. Shares of calls that had not begun go to another
    actor. An actor that does not answer within the time limits of its episodes is killed.

    Args:
        target: the environment; it must be importable in the actors, or defined in ``__main__``.
        size: the total number of environments.
        workers: the number of actors; None: one for each processor of the cluster, at most ``size``.
        settings: settings of the target.
        address: the cluster's address, if this program has not called ``ray.init``; None: as ``ray.init()``.
        actor_options: options of the actors, such as ``num_cpus``, ``resources`` or ``scheduling_strategy``.
        warm: the number of environments in addition to ``size`` to reset ahead of need, for async policies; the same
            number in each actor.
        start_timeout_s: seconds for an actor to be placed and to load the target.

    Raises:
        ValueError: an option controls retries.
    """

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
        self.size = size
        self.start_timeout_s = start_timeout_s
        self.rollout: tuple[int, list[Any]] = (0, [])
        self._target, self._settings, self._number, self._address = target, tuple(settings), workers, address
        self._warm = warm
        self._options: dict[str, Any] = {
            "num_cpus": 0,
            "max_concurrency": size + warm + BATCH,
            **(actor_options or {}),
            "max_restarts": -1,
            "max_task_retries": 0,  # a retried step would be a step twice
        }
        self._cluster = AsyncExitStack()
        self._actors: list[ActorHandle] = []
        self._rollouts = itertools.count(1)
        self._limits = Limits()
        self._is_async = False
        self._waiting: deque[Waiting] = deque()
        self._planned = False
        self._share_s = UNKNOWN_S
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def at_once(self) -> int:
        """The shares that its actors can hold."""
        return sum(self._calls_of(actor) for actor in self._actors) * (1 if self._is_async else BATCH)

    def _calls_of(self, actor: ActorHandle) -> int:
        """Return the maximum of concurrent calls of an actor. A call of an async policy is one share."""
        return actor.environments + -(-self._warm // len(self._actors)) if self._is_async else IN_FLIGHT

    async def start(self) -> None:
        """Connect to Ray, or start it, and create the actors."""
        target = _pickled(self._target, "the target")
        await self._cluster.enter_async_context(connected(self._address))
        number = min(self.size, self._number or int(ray.cluster_resources().get("CPU", 1)) or 1)
        actor_class = ray.remote(Actor)
        for place, strategy in enumerate(strategies(self._options, number)):
            environments = len(range(place, self.size, number))  # as in `in_shares`
            given = (target, self._settings, environments if self._warm else None)
            make = functools.partial(self._made, actor_class, given)
            self._actors.append(ActorHandle(make, strategy, environments, self.start_timeout_s))
        await all_of(actor.revive() for actor in self._actors)

    def _made(self, actor_class: Any, given: tuple[Any, ...], strategy: Any) -> Any:
        # A strategy from the user takes precedence.
        return actor_class.options(**{"scheduling_strategy": strategy, **self._options}).remote(*given)

    async def close(self) -> None:
        """Kill the actors; stop Ray if this object started it."""
        actors, self._actors = self._actors, []
        for waiting in [*self._waiting, *(each for actor in actors for batch in actor.calls for each in batch)]:
            waiting.fail(PoolError(CLOSED))
        self._waiting.clear()
        await self._stop_calls()
        for actor in actors:
            actor.kill()
        await self._cluster.aclose()

    async def begin(self, policy: Policy, limits: Limits) -> None:
        """Store the policy where each actor fetches it once."""
        refuse_unused_warm(self._warm, policy, "a Ray actor")
        begin = _pickled(Begin(policy, limits), "the policy")
        await self._stop_calls()  # of a rollout that was cancelled
        self._waiting.clear()
        self._limits, self._is_async, self._share_s = limits, is_async(policy), UNKNOWN_S
        self.rollout = (next(self._rollouts), [await asyncio.to_thread(ray.put, begin)])
        await all_of(actor.revive() for actor in self._actors if not actor.alive)

    async def _stop_calls(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share, in a call with others that were requested at the same time."""
        if not self._actors:
            raise PoolError(CLOSED)
        waiting = Waiting(share, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._plan()
        return await waiting.answer

    def _plan(self) -> None:
        """Send the waiting shares once all current callers have added theirs."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._planned = False
        while self._waiting and self._actors:
            alone = self._waiting[0].attempts > 0
            free = [
                actor
                for actor in self._actors
                if actor.alive and not actor.plays_again and len(actor.calls) < (1 if alone else self._calls_of(actor))
            ]
            if not free:
                return
            actor = min(free, key=lambda each: len(each.calls))
            batch = self._batch()
            if batch:
                actor.calls.append(batch)
                call = asyncio.ensure_future(self._play(actor, batch))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                for waiting in batch:
                    waiting.answer.add_done_callback(functools.partial(_stop_if_unwanted, call, batch))

    def _batch(self) -> list[Waiting]:
        """Return the next shares for one call: as many as take half the time of a batch, at most each actor's part."""
        most = 1
        if not self._is_async:
            part = math.ceil(len(self._waiting) / len(self._actors))
            most = max(1, min(BATCH, part, int(BATCH_S / 2 / self._share_s)))
        batch: list[Waiting] = []
        while self._waiting and len(batch) < most:
            alone = self._waiting[0].attempts > 0
            if alone and batch:
                break
            waiting = self._waiting.popleft()
            if not waiting.answer.done():  # its caller may be cancelled
                batch.append(waiting)
            if alone and batch:
                break
        return batch

    async def _play(self, actor: ActorHandle, batch: list[Waiting]) -> None:
        longest = max(len(waiting.share) for waiting in batch)
        one_s = BATCH_S + self._limits.episode_timeout_s * longest + GRACE_S
        limit_s = one_s if self._is_async else one_s * len(actor.calls)
        shares = [waiting.share for waiting in batch]
        try:
            answers = await actor.ask("play", *self.rollout, shares, limit_s=limit_s)
            if answers is None:
                self._lost(actor)
                return
        except PoolError as error:
            for waiting in batch:
                waiting.fail(error)
            return
        finally:
            if batch in actor.calls:
                actor.calls.remove(batch)
        for waiting, answer in zip(batch, answers, strict=False):
            if isinstance(answer, Failed):
                waiting.fail(answer.error)
            elif not waiting.answer.done():
                lasted_s = sum(played_of(each).duration_s for each in answer.outcomes)
                self._share_s += 0.1 * (max(lasted_s, 1e-4) - self._share_s)
                waiting.answer.set_result([changed(each, attempts=waiting.attempts + 1) for each in answer.outcomes])
        self._waiting.extendleft(reversed(batch[len(answers) :]))
        self._plan()

    def _lost(self, actor: ActorHandle) -> None:
        """Queue the shares of a lost actor again; if it had only one share, answer it."""
        calls, actor.calls = actor.calls, []
        # The next call may cause the loss of an answer, so only a share alone in an actor is known to be the cause.
        company = sum(len(batch) for batch in calls) > 1
        for place, batch in enumerate(calls):
            begun = self._is_async or place == 0
            for waiting in batch:
                if waiting.answer.done():
                    continue
                if not company:
                    more: dict[str, Any] = {
                        "attempts": waiting.attempts + 1,
                        "error": actor.died,
                        "where": "actor",
                    }
                    waiting.answer.set_result([Played(each, LOST, **more) for each in waiting.share])
                    continue
                waiting.attempts += begun
                self._waiting.append(waiting)
        if calls:
            revive = asyncio.ensure_future(self._revive(actor))
            self._calls.add(revive)
            revive.add_done_callback(self._calls.discard)
            self._plan()

    async def _revive(self, actor: ActorHandle) -> None:
        try:
            await actor.revive()
        except PoolError as error:
            if not any(each.alive for each in self._actors):
                while self._waiting:
                    self._waiting.popleft().fail(error)
        else:
            self._plan()

    # -- single steps

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset environments."""

        async def ask(place: int, mine: Sequence[tuple[int, Any]]) -> Sequence[StepResult[Any]]:
            actor = self._actors[place]
            for _ in range(2):  # it may have died since the last call
                if not actor.alive:
                    await actor.revive()
                answers = await actor.ask("reset", [(i, dict(given)) for i, given in mine], limit_s=300.0)
                if answers is not None:
                    actor.lost -= {i for i, _ in mine}
                    return _checked(answers)
            return actor.lose(mine)

        return await in_shares(options, len(self._actors), ask)

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        limit_s = 300.0 if timeout_s is None else timeout_s * len(actions)

        async def ask(place: int, mine: Sequence[tuple[int, Any]]) -> Sequence[StepResult[Any]]:
            actor = self._actors[place]
            kept = [pair for pair in mine if pair[0] not in actor.lost]
            answers: Any = []
            if kept:
                try:
                    answers = await actor.ask("step", kept, timeout_s, limit_s=limit_s + GRACE_S)
                except asyncio.CancelledError:
                    actor.lose(kept)  # their steps may have run
                    raise
            known = dict(zip([i for i, _ in kept], _checked(answers or []), strict=False))
            if answers is None:
                actor.lose(kept)
            return [known[i] if i in known else lost_result(LOST, actor.died) for i, _ in mine]

        return await in_shares(actions, len(self._actors), ask)


def _pickled(given: Any, name: str) -> bytes:
    try:
        return cast("bytes", cloudpickle.dumps(given))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PoolError(
            f"{name} cannot be sent to a Ray actor ({error}). Make it of plain data and functions of modules"
        ) from error


def _checked(answers: Sequence[StepResult[Any]] | Failed) -> Sequence[StepResult[Any]]:
    if isinstance(answers, Failed):
        raise answers.error
    return answers


def _stop_if_unwanted(call: asyncio.Task[None], batch: Sequence[Waiting], _: asyncio.Future[list[Outcome]]) -> None:
    if all(waiting.answer.cancelled() for waiting in batch):
        call.cancel()
