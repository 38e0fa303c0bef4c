"""The processes or actors in which a pool plays, and the distribution of its work over them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mcpenv_client.types.records import StepResult

from .assignment import Limits, Played, Share
from .backend import CLOSED, LOST, PoolError, all_of, in_shares, lost_result
from .episode import Outcome, Policy, is_async
from .playing import changed, played_of
from .worker import BATCH_S, Answers, Begin, Failed

GRACE_S = 5.0
"""Seconds after the time limit of its episodes for a place to report the timeout itself."""

STEP_S = 300.0
"""Seconds for a reset, and for a step without a deadline."""

UNKNOWN_S = 0.02
"""The assumed duration of a share in seconds, before one was measured."""


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


@dataclass(frozen=True)
class Rollout:
    """A rollout: its number, and its policy and limits in the form in which a place gets them."""

    number: int
    begin: Any


class Place(ABC):
    """A process or an actor with environments.

    Attributes:
        environments: the number of its environments in the pool.
        calls: its running batches, oldest first.
        died: the reason of the last loss.
        lost: the numbers of environments with an unanswered last step that may have run.
    """

    def __init__(self, environments: int) -> None:
        self.environments = environments
        self.calls: list[list[Waiting]] = []
        self.died = ""
        self.lost: set[int] = set()

    @property
    @abstractmethod
    def alive(self) -> bool:
        """True if it is loaded, and is not known to be lost since."""

    @property
    def plays_again(self) -> bool:
        """True while it plays an episode of a lost call, without other episodes."""
        return any(waiting.attempts for batch in self.calls for waiting in batch)

    @abstractmethod
    async def revive(self) -> None:
        """Start it unless it is alive, and wait until it is loaded.

        Raises:
            PoolError: the target cannot be loaded, or it does not start in time.
        """

    @abstractmethod
    async def play(self, rollout: Rollout, shares: Sequence[Share], limit_s: float) -> list[Answers | Failed] | None:
        """Play shares, as `Worker.play`. Return None if the place was lost, or was killed at its deadline."""

    @abstractmethod
    async def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method of the `Worker` and return its answer; None if the place was lost, or killed at its deadline.

        Cancelling stops what was asked.

        Raises:
            PoolError: the method itself failed.
        """

    @abstractmethod
    def kill(self) -> None:
        """End it."""

    def lose(self, mine: Sequence[tuple[int, Any]]) -> list[StepResult[Any]]:
        """Mark environments as lost until their reset, and return their results."""
        self.lost |= {i for i, _ in mine}
        return [lost_result(LOST, self.died) for _ in mine]


class PlacesBackend(ABC):
    """Plays in places that hold many environments each. A call has a batch of shares, or one step of many.

    A lost place is started again, but no call is repeated. Each share of a lost call is begun again in a place without
    other shares, so that only the share that ends its place is lost. Shares of calls that had not begun go to another
    place. A place that does not answer within the time limits of its episodes is killed.

    Subclasses make the places in `start`. Environment ``i`` is in place ``i % number``.

    Args:
        size: the total number of environments.
        warm: the number of environments in addition to ``size`` to reset ahead of need, for async policies; the same
            number in each place.

    Attributes:
        kind: the word for a place in messages.
        batch: maximum shares of one call.
        in_flight: concurrent calls of a place with a plain function as policy. With 1, a lost place loses only what it
            was playing; with more, it does not wait for the next call.
        advice: the remedy for a policy that cannot be sent to a place.
    """

    kind: ClassVar[str]
    batch: ClassVar[int]
    in_flight: ClassVar[int]
    advice: ClassVar[str]

    def __init__(self, size: int, warm: int) -> None:
        self.size = size
        self._warm = warm
        self._places: list[Place] = []
        self._rollouts = itertools.count(1)
        self._rollout = Rollout(0, None)
        self._limits = Limits()
        self._is_async = False
        self._waiting: deque[Waiting] = deque()
        self._planned = False
        self._share_s = UNKNOWN_S
        self._calls: set[asyncio.Task[None]] = set()
        self._reviving: set[Place] = set()

    @abstractmethod
    async def start(self) -> None:
        """Make the places, and start them."""

    @abstractmethod
    def pickled(self, given: Any) -> bytes:
        """Return what is sent to a place."""

    async def published(self, begin: bytes) -> Any:
        """Return the form in which each place gets the pickled `Begin` of a rollout."""
        return begin

    def sendable(self, given: Any, name: str, advice: str) -> bytes:
        """Return pickled data for a place.

        Raises:
            PoolError: it cannot be pickled.
        """
        try:
            return self.pickled(given)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise PoolError(f"{name} cannot be sent to {self.kind} ({error}). {advice}") from error

    def environments_of(self, place: int, number: int) -> int:
        """Return the number of environments of a place, as `in_shares` assigns them."""
        return len(range(place, self.size, number))

    @property
    def at_once(self) -> int:
        """The shares that its places can hold."""
        return sum(self._calls_of(place) for place in self._places) * (1 if self._is_async else self.batch)

    def _calls_of(self, place: Place) -> int:
        """Return the maximum of concurrent calls of a place. A call of an async policy is one share."""
        return place.environments + -(-self._warm // len(self._places)) if self._is_async else self.in_flight

    async def close(self) -> None:
        """Kill the places."""
        places, self._places = self._places, []
        for waiting in [*self._waiting, *(each for place in places for batch in place.calls for each in batch)]:
            waiting.fail(PoolError(CLOSED))
        self._waiting.clear()
        await self._stop_calls()
        for place in places:
            place.kill()

    # -- whole episodes

    async def begin(self, policy: Policy, limits: Limits) -> None:
        """Prepare for a rollout.

        Raises:
            PoolError: the policy cannot be used here.
        """
        if self._warm and not is_async(policy):
            raise PoolError(
                f"{self.kind} plays one episode of a plain function at a time, so that none is reset beside it: make "
                "the policy async, or leave warm out and have more workers"
            )
        begin = self.sendable(Begin(policy, limits), "the policy", self.advice)
        await self._stop_calls()  # of a rollout that was cancelled
        self._waiting.clear()
        self._limits, self._is_async, self._share_s = limits, is_async(policy), UNKNOWN_S
        self._rollout = Rollout(next(self._rollouts), await self.published(begin))
        await all_of(place.revive() for place in self._places)

    async def _stop_calls(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share, in a call with others that were requested at the same time."""
        if not self._places:
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
        if self._waiting:
            self._replace_lost()
        while self._waiting and self._places:
            alone = self._waiting[0].attempts > 0
            free = [
                place
                for place in self._places
                if place.alive and not place.plays_again and len(place.calls) < (1 if alone else self._calls_of(place))
            ]
            if not free:
                return
            place = min(free, key=lambda each: len(each.calls))
            batch = self._batch()
            if batch:
                place.calls.append(batch)
                call = self._run(self._play(place, batch))
                for waiting in batch:
                    waiting.answer.add_done_callback(functools.partial(_stop_if_unwanted, call, batch))

    def _replace_lost(self) -> None:
        for place in self._places:
            if not place.alive and place not in self._reviving:
                self._reviving.add(place)
                self._run(self._revive(place))

    def _run(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    def _batch(self) -> list[Waiting]:
        """Return the next shares for one call: as many as take half the time of a batch, at most each place's part."""
        most = 1
        if not self._is_async:
            part = math.ceil(len(self._waiting) / len(self._places))
            most = max(1, min(self.batch, part, int(BATCH_S / 2 / self._share_s)))
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

    async def _play(self, place: Place, batch: list[Waiting]) -> None:
        longest = max(len(waiting.share) for waiting in batch)
        one_s = BATCH_S + self._limits.episode_timeout_s * longest + GRACE_S
        limit_s = one_s if self._is_async else one_s * len(place.calls)
        try:
            answers = await place.play(self._rollout, [waiting.share for waiting in batch], limit_s)
            if answers is None:
                self._lost(place)
                return
        except PoolError as error:
            for waiting in batch:
                waiting.fail(error)
            return
        finally:
            if batch in place.calls:
                place.calls.remove(batch)
        for waiting, answer in zip(batch, answers, strict=False):
            if isinstance(answer, Failed):
                waiting.fail(answer.error)
            elif not waiting.answer.done():
                lasted_s = sum(played_of(each).duration_s for each in answer.outcomes)
                self._share_s += 0.1 * (max(lasted_s, 1e-4) - self._share_s)
                waiting.answer.set_result([changed(each, attempts=waiting.attempts + 1) for each in answer.outcomes])
        self._waiting.extendleft(reversed(batch[len(answers) :]))
        self._plan()

    def _lost(self, place: Place) -> None:
        """Queue the shares of a lost place again; if it had only one share, answer it."""
        calls, place.calls = place.calls, []
        # The next call may cause the loss of an answer, so only a share alone in a place is known to be the cause.
        company = sum(len(batch) for batch in calls) > 1
        for number, batch in enumerate(calls):
            begun = self._is_async or number == 0
            for waiting in batch:
                if waiting.answer.done():
                    continue
                if not company:
                    more: dict[str, Any] = {
                        "attempts": waiting.attempts + 1,
                        "error": place.died,
                        "where": self.kind.rpartition(" ")[2],
                    }
                    waiting.answer.set_result([Played(each, LOST, **more) for each in waiting.share])
                    continue
                waiting.attempts += begun
                self._waiting.append(waiting)
        self._plan()

    async def _revive(self, place: Place) -> None:
        try:
            await place.revive()
        except PoolError as error:
            if not any(each.alive for each in self._places):
                while self._waiting:
                    self._waiting.popleft().fail(error)
        else:
            self._plan()
        finally:
            self._reviving.discard(place)

    # -- single steps

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset environments."""

        async def ask(number: int, mine: Sequence[tuple[int, Any]]) -> Sequence[StepResult[Any]]:
            place = self._places[number]
            for _ in range(2):  # it may have died since the last call
                await place.revive()
                answers = await place.ask("reset", [(i, dict(given)) for i, given in mine], limit_s=STEP_S)
                if answers is not None:
                    place.lost -= {i for i, _ in mine}
                    return _checked(answers)
            return place.lose(mine)

        return await self._asked(options, ask)

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        limit_s = STEP_S if timeout_s is None else timeout_s * len(actions)

        async def ask(number: int, mine: Sequence[tuple[int, Any]]) -> Sequence[StepResult[Any]]:
            place = self._places[number]
            kept = [pair for pair in mine if pair[0] not in place.lost]
            answers: Any = []
            if kept:
                try:
                    await place.revive()
                    answers = await place.ask("step", kept, timeout_s, limit_s=limit_s + GRACE_S)
                except asyncio.CancelledError:
                    place.lose(kept)  # their steps may have run
                    raise
            known = dict(zip([i for i, _ in kept], _checked(answers or []), strict=False))
            if answers is None:
                place.lose(kept)
            return [known[i] if i in known else lost_result(LOST, place.died) for i, _ in mine]

        return await self._asked(actions, ask)

    async def _asked(self, items: Sequence[Any], ask: Callable[..., Any]) -> list[StepResult[Any] | None]:
        if not self._places:
            raise PoolError(CLOSED)
        return await in_shares(items, len(self._places), ask)


def _checked(answers: Sequence[StepResult[Any]] | Failed) -> Sequence[StepResult[Any]]:
    if isinstance(answers, Failed):
        raise answers.error
    return answers


def _stop_if_unwanted(call: asyncio.Task[None], batch: Sequence[Waiting], _: asyncio.Future[list[Outcome]]) -> None:
    if all(waiting.answer.cancelled() for waiting in batch):
        call.cancel()
