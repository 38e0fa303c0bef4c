"""The episodes of one play, each as soon as it is done."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .assignment import Assignment, Played, Share
from .backend import Rollout
from .division import Division
from .episode import Outcome, PolicyFailed
from .plan import Plan
from .playing import played_of

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("mcpenv")

PolicyErrors = Literal["raise", "record"]
"""The handling of an exception in a policy."""


@dataclass(frozen=True)
class Repeats:
    """When an episode is played again.

    Attributes:
        retries: the number of retries of an episode with a status that is not about the agent and may change.
        policy_errors: "raise", or "record" to return an episode whose policy raised.
        policy_version: returns the version of the pool's weights.
    """

    retries: int
    policy_errors: PolicyErrors
    policy_version: Callable[[], int | None]

    async def play(self, rollout: Rollout, share: Share) -> list[Played]:
        """Play a share, and retry it while an episode's status shows that another attempt may end otherwise.

        Raises:
            PolicyFailed: the policy raised, and `policy_errors` is "raise".
        """
        attempts = 0
        for attempt in range(1, self.retries + 2):
            version = self.policy_version()
            outcomes = await rollout.play(share)
            if self.policy_errors == "raise":
                _raise_first(outcomes)
            played = [played_of(each) for each in outcomes]
            attempts += max(each.attempts for each in played)
            bad = [each for each in played if not each.status.usable and each.status.retryable]
            if not bad or attempt > self.retries:
                break
            for each in bad:
                text = each.error or each.status.code
                logger.warning("pool: episode %d is begun again: %s", each.assignment.number, text)
            # Other episodes of a lost server return at the same moment.
            await asyncio.sleep(random.uniform(0.0, min(0.1 * 2**attempt, 2.0)))
        return [dataclasses.replace(each, attempts=attempts, pool_version=version) for each in played]


def _raise_first(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, PolicyFailed):
            raise outcome


class Running:
    """The running and the finished shares of a play.

    Args:
        rollout: plays them.
        division: the plays of the pool.
        repeats: when an episode is played again.
    """

    def __init__(self, rollout: Rollout, division: Division, repeats: Repeats) -> None:
        self._rollout, self._division, self._repeats = rollout, division, repeats
        self._part = division.join(lambda: rollout.at_once)
        self._shares: dict[asyncio.Task[list[Played]], Share] = {}
        self._done: deque[asyncio.Task[list[Played]]] = deque()
        self._played: deque[Played] = deque()
        self._failure: Exception | None = None

    def begin_from(self, plan: Plan, *, wait: bool) -> bool:
        """Begin the next shares while there are places for them. Return False if nothing more is to come.

        Finished shares that were not taken count as running, so that a slow caller has no backlog of old episodes.

        Args:
            plan: the shares.
            wait: True to wait for the next place, before plays with a larger part.
        """
        self._part.woken.clear()
        waits = False
        while self._failure is None and len(self._shares) < self._part.at_once():
            if not self._division.may_begin(self._part):
                waits = wait and not plan.ended
                break
            share = plan.next(self._part.woken.set)
            if share is None:
                break
            task = asyncio.ensure_future(self._repeats.play(self._rollout, share))
            self._shares[task] = share
            self._part.running += 1
            task.add_done_callback(self._ended)
        self._division.wait(self._part, waits)
        return bool(self._shares) or not plan.ended

    def _ended(self, task: asyncio.Task[list[Played]]) -> None:
        self._part.running -= 1
        self._done.append(task)
        self._part.woken.set()
        self._division.changed()

    def take(self) -> Played | None:
        """Return the next finished episode; None if there is none now.

        Raises:
            Exception: an episode could not be played, or the source failed. All episodes that had finished by then are
                returned before.
        """
        while not self._played and self._done:
            task = self._done.popleft()
            try:
                played = task.result()
            except Exception as error:  # noqa: BLE001 - raised below
                self.fail(error)
                continue
            del self._shares[task]
            self._played.extend(played)
        if not self._played and self._failure is not None:
            raise self._failure
        return self._played.popleft() if self._played else None

    @property
    def failed(self) -> bool:
        """True if `take` will raise once it has returned what has finished."""
        return self._failure is not None

    def fail(self, error: Exception) -> None:
        """Begin nothing more, and let `take` raise an error. The first one counts."""
        self._failure = self._failure or error

    async def changed(self) -> None:
        """Wait until a share has ended, or another may begin."""
        await self._part.woken.wait()

    async def close(self) -> list[Assignment]:
        """Stop the running shares, and return the episodes that were not taken."""
        self._part.closing = True
        for task in self._shares:
            task.cancel()
        await asyncio.gather(*self._shares, return_exceptions=True)
        await self._rollout.close()
        self._division.leave(self._part)
        return [
            *(each.assignment for each in self._played),
            *(each for share in self._shares.values() for each in share),
        ]


class Episodes:
    """The episodes of a play, as an async iterator. Leaving ``async with``, or `aclose`, ends the play."""

    _episodes: AsyncGenerator[Played, None]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Played:
        return await anext(self._episodes)

    async def aclose(self) -> None:
        """End the play. Running episodes are stopped. Safe to call twice."""
        await self._episodes.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class Stream(Episodes):
    """The episodes of a play, as an async iterator. The episodes begin with the first ``async for``.

    The end of ``async with``, `aclose` and the loss of the last reference end the play; the first two wait for that.
    Until then the running episodes go on between two loops.

    Args:
        plan: the episodes.
        begin: starts the pool, and returns the rollout.
        division: the plays of the pool.
        repeats: when an episode is played again.
        told: called with each episode before it is yielded; None: no call.
        bar: updated with each episode; None: no bar.

    Attributes:
        unfinished: the episodes that the play read and did not yield, once it is closed. As tasks of another play they
            are begun again, each with its number, task and seed.
    """

    def __init__(
        self,
        plan: Plan,
        begin: Callable[[], Awaitable[Rollout]],
        division: Division,
        repeats: Repeats,
        *,
        told: Callable[[Played], None] | None = None,
        bar: Any = None,
    ) -> None:
        self.unfinished: list[Assignment] = []
        # The generator must not refer to the stream: the event loop closes it when the last reference to it is lost.
        self._episodes = _episodes(plan, begin, division, repeats, told, bar, self.unfinished)


async def _episodes(
    plan: Plan,
    begin: Callable[[], Awaitable[Rollout]],
    division: Division,
    repeats: Repeats,
    told: Callable[[Played], None] | None,
    bar: Any,
    unfinished: list[Assignment],
) -> AsyncGenerator[Played, None]:
    running = Running(await begin(), division, repeats)
    try:
        while True:
            played = running.take()
            try:
                more = running.begin_from(plan, wait=played is None)
                if told is not None and played is not None:
                    told(played)
            except Exception as error:  # noqa: BLE001 - an error of the source, raised after what has finished
                running.fail(error)
                more = False
            if played is not None:
                if bar is not None:
                    bar.update()
                yield played
            elif more:
                await running.changed()
            elif not running.failed:
                return
    finally:
        unfinished += await running.close()
        unfinished += await plan.close()
        if bar is not None:
            bar.close()
