"""The processes or actors in which a pool plays, and the distribution of its work over them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mcpenv_client.types.records import StepResult

from .assignment import Played, Share
from .backend import CLOSED, LOST, PoolError, all_of, in_shares, lost_result
from .clock import Clock
from .episode import Begin, Outcome
from .playing import changed, played_of
from .worker import BATCH_S, Answers, Failed

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


@dataclass(eq=False)
class Batch:
    """The shares of one call.

    Attributes:
        rollout: their rollout.
        waiting: the shares.
        spared: True if the place was killed because another call was cancelled.
    """

    rollout: PlacesRollout
    waiting: list[Waiting]
    spared: bool = False


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
        self.calls: list[Batch] = []
        self.died = ""
        self.lost: set[int] = set()

    @property
    @abstractmethod
    def alive(self) -> bool:
        """True if it is loaded, and is not known to be lost since."""

    @property
    def plays_again(self) -> bool:
        """True while it plays an episode of a lost call, without other episodes."""
        return any(waiting.attempts for batch in self.calls for waiting in batch.waiting)

    @abstractmethod
    async def revive(self) -> None:
        """Start it unless it is alive, and wait until it is loaded.

        Raises:
            PoolError: the target cannot be loaded, or it does not start in time.
        """

    @abstractmethod
    async def play(
        self, rollout: PlacesRollout, shares: Sequence[Share], limit_s: float
    ) -> list[Answers | Failed] | None:
        """Play shares, as `Worker.play`. Return None if the place was lost, or was killed at its deadline."""

    @abstractmethod
    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the `Worker` without waiting for it. Do nothing if the place is not alive."""

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


class PlacesRollout:
    """A rollout in places.

    Args:
        backend: has the places.
        number: its number.
        begin: its policy and limits.
        sent: the form in which each place gets them.

    Attributes:
        waiting: the shares that wait for a place.
        calls: the running calls.
    """

    def __init__(self, backend: PlacesBackend, number: int, begin: Begin, sent: Any) -> None:
        self.number, self.begin, self.sent = number, begin, sent
        self.waiting: deque[Waiting] = deque()
        self.calls: set[asyncio.Task[None]] = set()
        self._backend = backend
        self._share_s = UNKNOWN_S

    @property
    def at_once(self) -> int:
        """The shares that the places can hold."""
        return self._backend.at_once(self.begin.is_async)

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share."""
        waiting = Waiting(share, asyncio.get_running_loop().create_future())
        self._backend.add(self, waiting)
        return await waiting.answer

    async def close(self) -> None:
        """Stop its calls."""
        self.waiting.clear()
        await _stopped(self.calls)
        self._backend.end(self)

    def fail(self, error: Exception) -> None:
        """Answer the waiting shares with an error."""
        while self.waiting:
            self.waiting.popleft().fail(error)

    def limit_s(self, batch: Batch) -> float:
        """Return the seconds after which a place that plays a batch does not answer any more."""
        longest = max(len(waiting.share) for waiting in batch.waiting)
        return BATCH_S + self.begin.limits.episode_timeout_s * longest + GRACE_S

    def next(self, most: int, places: int) -> Batch:
        """Return the next shares for one call: as many as take half the time of a batch, at most each place's part.

        Args:
            most: the maximum.
            places: the number of places.
        """
        if self.begin.is_async:
            most = 1
        else:
            part = math.ceil(len(self.waiting) / places)
            most = max(1, min(most, part, int(BATCH_S / 2 / self._share_s)))
        batch: list[Waiting] = []
        while self.waiting and len(batch) < most:
            alone = self.waiting[0].attempts > 0
            if alone and batch:
                break
            waiting = self.waiting.popleft()
            if not waiting.answer.done():  # its caller may be cancelled
                batch.append(waiting)
            if alone and batch:
                break
        return Batch(self, batch)

    def take(self, batch: Batch, answers: Sequence[Answers | Failed]) -> None:
        """Answer the shares of a batch. Those without an answer wait again."""
        for waiting, answer in zip(batch.waiting, answers, strict=False):
            if isinstance(answer, Failed):
                waiting.fail(answer.raised())
            elif not waiting.answer.done():
                lasted_s = sum(played_of(each).duration_s for each in answer.outcomes)
                self._share_s += 0.1 * (max(lasted_s, 1e-4) - self._share_s)
                waiting.answer.set_result([changed(each, attempts=waiting.attempts + 1) for each in answer.outcomes])
        self.waiting.extendleft(reversed(batch.waiting[len(answers) :]))


class PlacesBackend(ABC):
    """Plays in places that hold many environments each. A call has a batch of shares, or one step of many.

    A lost place is started again, but no call is repeated. Each share of a lost call is begun again in a place without
    other shares, so that only the share that ends its place is lost. A place that does not answer within the time
    limits of its episodes is killed.

    Subclasses make the places in `start`. Environment ``i`` is in place ``i % number``.

    Args:
        size: the total number of environments.
        warm: the number of environments in addition to ``size`` to reset ahead of need, for async policies; the same
            number in each place.

    Attributes:
        clock: the clock of the deadlines of its calls.
        kind: the word for a place in messages.
        batch: maximum shares of one call.
        advice: the remedy for a policy that cannot be sent to a place.
    """

    kind: ClassVar[str]
    batch: ClassVar[int]
    advice: ClassVar[str]

    def __init__(self, size: int, warm: int) -> None:
        self.size = size
        self._warm = warm
        self._places: list[Place] = []
        self.clock = Clock()
        self._numbers = itertools.count(1)
        self._rollouts: list[PlacesRollout] = []
        self._paused = False
        self._planned = False
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

    def at_once(self, is_async: bool) -> int:
        """Return the shares that its places can hold."""
        calls = sum(self._calls_of(place, is_async) for place in self._places)
        return max(calls, 1) * (1 if is_async else self.batch)

    def _calls_of(self, place: Place, is_async: bool) -> int:
        """Return the maximum of concurrent calls of a place. A call of an async policy is one share.

        With a plain function as policy it is 1, so that a lost call is what the place was playing.
        """
        return place.environments + -(-self._warm // len(self._places)) if is_async else 1

    async def close(self) -> None:
        """Kill the places."""
        self.pause(False)
        places, self._places = self._places, []
        for rollout in self._rollouts:
            rollout.fail(PoolError(CLOSED))
        for waiting in [each for place in places for batch in place.calls for each in batch.waiting]:
            waiting.fail(PoolError(CLOSED))
        await _stopped({*self._calls, *(call for rollout in self._rollouts for call in rollout.calls)})
        for place in places:
            place.kill()

    # -- whole episodes

    async def begin(self, begin: Begin) -> PlacesRollout:
        """Return a new rollout.

        Raises:
            PoolError: the policy cannot be used here.
        """
        if self._warm and not begin.is_async:
            raise PoolError(
                f"{self.kind} plays one episode of a plain function at a time, so that none is reset beside it: make "
                "the policy async, or leave warm out and have more workers"
            )
        sent = await self.published(self.sendable(begin, "the policy", self.advice))
        await all_of(place.revive() for place in self._places)
        rollout = PlacesRollout(self, next(self._numbers), begin, sent)
        self._rollouts.append(rollout)
        return rollout

    def pause(self, paused: bool) -> None:
        """Pause the episodes, or continue."""
        self._paused = paused
        self.clock.stop() if paused else self.clock.start()
        for place in self._places:
            place.tell("pause", paused)

    def add(self, rollout: PlacesRollout, waiting: Waiting) -> None:
        """Play a share of a rollout, in a call with others that were requested at the same time.

        Raises:
            PoolError: the pool is closed.
        """
        if not self._places:
            raise PoolError(CLOSED)
        rollout.waiting.append(waiting)
        self._plan()

    def end(self, rollout: PlacesRollout) -> None:
        """Drop a rollout without calls."""
        self._rollouts.remove(rollout)
        for place in self._places:
            place.tell("forget", rollout.number)
        self._plan()

    def _plan(self) -> None:
        """Send the waiting shares once all current callers have added theirs."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._planned = False
        ready = [rollout for rollout in self._rollouts if rollout.waiting]
        if ready:
            self._replace_lost()
        while self._places and (ready := [rollout for rollout in ready if rollout.waiting]):
            rollout = min(ready, key=lambda each: len(each.calls))
            alone = rollout.waiting[0].attempts > 0
            place = self._free(rollout.begin.is_async, alone)
            if place is None and alone:
                return  # other shares would never leave a place to it
            if place is None:
                ready.remove(rollout)
                continue
            batch = rollout.next(self.batch, len(self._places))
            if batch.waiting:
                place.calls.append(batch)
                call = _run(self._play(place, batch), rollout.calls)
                for waiting in batch.waiting:
                    waiting.answer.add_done_callback(functools.partial(_stop_if_unwanted, call, batch.waiting))

    def _free(self, is_async: bool, alone: bool) -> Place | None:
        """Return the place with the fewest calls that may have another one; None if there is none."""
        free: list[Place] = []
        for place in self._places:
            own = sum(batch.rollout.begin.is_async == is_async for batch in place.calls)
            room = not place.calls if alone else own < self._calls_of(place, is_async)
            if place.alive and not place.plays_again and room:
                free.append(place)
        return min(free, key=lambda each: len(each.calls), default=None)

    def _replace_lost(self) -> None:
        for place in self._places:
            if not place.alive and place not in self._reviving:
                self._reviving.add(place)
                _run(self._revive(place), self._calls)

    async def _play(self, place: Place, batch: Batch) -> None:
        rollout = batch.rollout
        try:
            answers = await place.play(rollout, [waiting.share for waiting in batch.waiting], rollout.limit_s(batch))
            if answers is None:
                self._lost(place)
                return
        except PoolError as error:
            for waiting in batch.waiting:
                waiting.fail(error)
            return
        except asyncio.CancelledError:
            if not place.alive:
                for each in place.calls:
                    each.spared = True
            raise
        finally:
            if batch in place.calls:
                place.calls.remove(batch)
        rollout.take(batch, answers)
        self._plan()

    def _lost(self, place: Place) -> None:
        """Queue the shares of a lost place again; if it had only one share, answer it."""
        calls, place.calls = place.calls, []
        # Only a share alone in a place is known to be the cause.
        company = sum(len(batch.waiting) for batch in calls if not batch.spared) > 1
        for batch in calls:
            for waiting in batch.waiting:
                if waiting.answer.done():
                    continue
                if not company and not batch.spared:
                    more: dict[str, Any] = {
                        "attempts": waiting.attempts + 1,
                        "error": place.died,
                        "where": self.kind.rpartition(" ")[2],
                    }
                    waiting.answer.set_result([Played(each, LOST, **more) for each in waiting.share])
                    continue
                waiting.attempts += not batch.spared
                batch.rollout.waiting.append(waiting)
        self._plan()

    async def _revive(self, place: Place) -> None:
        try:
            await place.revive()
        except PoolError as error:
            if not any(each.alive for each in self._places):
                for rollout in self._rollouts:
                    rollout.fail(error)
        else:
            if self._paused:
                place.tell("pause", True)
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
        raise answers.raised()
    return answers


def _run(call: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(call)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


async def _stopped(running: Collection[asyncio.Task[None]]) -> None:
    running = [*running]
    for call in running:
        call.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _stop_if_unwanted(call: asyncio.Task[None], batch: Sequence[Waiting], _: asyncio.Future[list[Outcome]]) -> None:
    if all(waiting.answer.cancelled() for waiting in batch):
        call.cancel()
