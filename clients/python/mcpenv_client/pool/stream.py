"""The episodes of one play, each as soon as it is done."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from .assignment import Assignment, Played, PlayError, Share
from .backend import PoolError, Rollout
from .division import Division
from .episode import Outcome, PolicyFailed
from .playing import changed, played_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .checkpoint import PlayLog

T = TypeVar("T")

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
        log: the log of the play, for its checkpoint; None without one.
    """

    retries: int
    policy_errors: PolicyErrors
    policy_version: Callable[[], int | None]
    log: PlayLog | None = None

    async def play(self, rollout: Rollout, share: Share) -> list[Outcome]:
        """Play a share as `_play`, unless its outcomes are known from before a restart."""
        if self.log is None:
            return await self._play(rollout, share)
        return await self.log.played(share, lambda: self._play(rollout, share))

    async def _play(self, rollout: Rollout, share: Share) -> list[Outcome]:
        """Play a share, and retry it while an episode's status shows that another attempt may end otherwise.

        An outcome is `PolicyFailed` only if `policy_errors` is "raise". Then there was no retry.
        """
        attempts = 0
        for attempt in range(1, self.retries + 2):
            version = self.policy_version()
            if self.log is not None:
                version = self.log.version(share, version)
            outcomes = await rollout.play(share)
            if self.policy_errors == "raise" and any(isinstance(each, PolicyFailed) for each in outcomes):
                return [
                    changed(each, attempts=attempts + played_of(each).attempts, pool_version=version)
                    for each in outcomes
                ]
            played = [played_of(each) for each in outcomes]
            attempts += max(each.attempts for each in played)
            bad = [each for each in played if not each.status.usable and each.status.retryable]
            if not bad or attempt > self.retries:
                break
            for each in bad:
                text = each.error or each.status.code
                logger.warning("pool: episode %d is begun again: %s", each.assignment.number, text)
            if self.log is not None:
                self.log.forget(share)
            # Other episodes of a lost server return at the same moment.
            await asyncio.sleep(random.uniform(0.0, min(0.1 * 2**attempt, 2.0)))
        return [dataclasses.replace(each, attempts=attempts, pool_version=version) for each in played]


class Source(Protocol):
    """The shares of a play that one pool plays, such as a `Plan`."""

    @property
    def ended(self) -> bool:
        """True if there are no more."""
        ...

    def next(self, wake: Callable[[], None]) -> Share | None:
        """Return the next share. Return None if there is none now: call again after ``wake`` was called, or `ended`."""
        ...


@dataclass(frozen=True)
class Part:
    """The part of a play that one pool plays.

    Attributes:
        source: its shares.
        begin: starts the pool, and returns the rollout.
        division: the plays of the pool.
        repeats: when an episode is played again.
    """

    source: Source
    begin: Callable[[], Awaitable[Rollout]]
    division: Division
    repeats: Repeats


class Running:
    """The running and the finished shares of a part of a play.

    Args:
        part: the part.
        rollout: plays it.
        woken: set when a share has ended, or another may begin.
    """

    def __init__(self, part: Part, rollout: Rollout, woken: asyncio.Event) -> None:
        self._rollout, self._division, self._repeats, self._source = rollout, part.division, part.repeats, part.source
        self._use = part.division.join(lambda: rollout.at_once, woken, part.repeats.log is not None)
        self._shares: dict[asyncio.Task[list[Outcome]], Share] = {}
        self._done: deque[asyncio.Task[list[Outcome]]] = deque()

    def begin(self, *, wait: bool) -> bool:
        """Begin the next shares while there are places for them. Return False if nothing more is to come.

        Finished shares that were not taken count as running, so that a slow caller has no backlog of old episodes.

        Args:
            wait: True to wait for the next place, before plays with a larger part.

        Raises:
            Exception: the source failed.
        """
        waits = False
        try:
            while len(self._shares) < self._use.at_once():
                if not self._division.may_begin(self._use):
                    waits = wait and not self._source.ended
                    break
                share = self._source.next(self._use.woken.set)
                if share is None:
                    break
                task = asyncio.ensure_future(self._repeats.play(self._rollout, share))
                self._shares[task] = share
                self._use.running += 1
                task.add_done_callback(self._ended)
        finally:
            self._division.wait(self._use, waits)
        return bool(self._shares) or not self._source.ended

    def begin_nothing(self) -> None:
        """Leave the free places to other plays."""
        self._division.wait(self._use, False)

    def _ended(self, task: asyncio.Task[list[Outcome]]) -> None:
        self._use.running -= 1
        self._done.append(task)
        self._use.woken.set()
        self._division.changed()

    def take(self) -> tuple[Share, list[Outcome] | Exception] | None:
        """Return the next finished share, and its outcomes or the error of playing it; None if there is none now."""
        if not self._done:
            return None
        task = self._done.popleft()
        share = self._shares.pop(task)
        try:
            return share, task.result()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return share, error

    async def close(self) -> list[Assignment]:
        """Stop the running shares, and return the episodes that were not taken."""
        self._use.closing = True
        for task in self._shares:
            task.cancel()
        await asyncio.gather(*self._shares, return_exceptions=True)
        await self._rollout.close()
        self._division.leave(self._use)
        return [each for share in self._shares.values() for each in share]


class Stream(Generic[T]):
    """Yields the episodes of a play, their groups, or their samples. The play begins with the first ``async for``.

    The end of ``async with``, `aclose` and the loss of the last reference end the play; the first two wait for that.
    Until then the running episodes go on between two loops.

    Args:
        begin: returns the iterator, which adds to a list, when it is closed, what is unfinished. It must not refer to
            the stream: the event loop closes it when the last reference to the stream is lost.
        given: the unfinished episodes of an earlier play, which are those of this one if it is closed before it began.
        log: told what is handed out, for the pool's checkpoint, and the end if the play never began; None without one.
        hands: False if the iterator itself tells the log what is handed out.

    Attributes:
        unfinished: the episodes that the play read and did not yield, once it is closed. A group, and its samples,
            count as yielded when all of it was. As ``unfinished`` of another play they are begun again, each with its
            number, task and seed.
    """

    def __init__(
        self,
        begin: Callable[[list[Assignment]], AsyncGenerator[T, None]],
        given: Iterable[Assignment] = (),
        log: PlayLog | None = None,
        *,
        hands: bool = True,
    ) -> None:
        self.unfinished: list[Assignment] = []
        self._items = begin(self.unfinished)
        self._given: list[Assignment] = [*given]
        self._log, self._hands, self._began = log, hands, False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._given.clear()  # the iterator has them from now on
        self._began = True
        try:
            item = await anext(self._items)
        except PlayError as error:
            error.unfinished = self.unfinished
            raise
        if self._log is not None and self._hands:
            handed: Any = item
            self._log.handed(handed)
        return item

    def take_log(self) -> PlayLog | None:
        """Return the log for a stream of what is made of these items, which then says what is handed out."""
        log, self._log = self._log, None
        return log

    async def aclose(self) -> None:
        """End the play. Running episodes are stopped. Safe to call twice."""
        await self._items.aclose()
        if self._log is not None and not self._began:
            self._log.end()
        self.unfinished += self._given
        self._given.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def episodes_of(
    parts: Sequence[Part],
    close: Callable[[], Awaitable[list[Assignment]]],
    told: Callable[[Played], None] | None,
    bar: Any,
    unfinished: list[Assignment],
) -> AsyncGenerator[Played, None]:
    """Yield the episodes of a play, each as soon as it is done.

    Args:
        parts: the part of each pool.
        close: ends the sources, and returns the episodes that were read and not begun.
        told: called with each episode before it is yielded; None: no call.
        bar: updated with each episode; None: no bar.
        unfinished: gets the episodes that were not yielded.

    Raises:
        PlayError: an episode could not be played, or the source failed. All episodes that had finished by then are
            yielded before.
    """
    woken, failure = asyncio.Event(), None
    running: list[Running] = []
    ready: deque[Played] = deque()
    try:
        for part in parts:
            running.append(Running(part, await part.begin(), woken))
        while True:
            woken.clear()
            for taken in [] if ready else [each.take() for each in running]:
                if taken is not None:
                    share, outcomes = taken
                    failed = _sort(share, outcomes, ready, unfinished)
                    failure = failure or failed
            played = ready.popleft() if ready else None
            more = False
            try:
                if told is not None and played is not None:
                    told(played)
                if failure is None:
                    more = sum(each.begin(wait=played is None) for each in running) > 0
            except Exception as error:  # noqa: BLE001 - raised after what has finished
                failure = failure or _caused("the source of tasks failed", error)
            if failure is not None:
                for each in running:
                    each.begin_nothing()
            if played is not None:
                if bar is not None:
                    bar.update()
                yield played
            elif failure is not None:
                raise failure
            elif more:
                await woken.wait()
            else:
                return
    finally:
        unfinished += [each.assignment for each in ready]
        for left in await asyncio.gather(*(each.close() for each in running)):
            unfinished += left
        unfinished += await close()
        if bar is not None:
            bar.close()


def _sort(
    share: Share, outcomes: list[Outcome] | Exception, ready: deque[Played], unfinished: list[Assignment]
) -> PlayError | None:
    """Add the outcomes of a share to those that are ready or unfinished. Return the error that ends the play, if any.

    After an error of its policy, what would have been begun again is unfinished.
    """
    if isinstance(outcomes, Exception):
        unfinished += share
        return _caused("an episode cannot be played", outcomes)
    failure = next((each for each in outcomes if isinstance(each, PolicyFailed)), None)
    for each in outcomes:
        played = played_of(each)
        if isinstance(each, PolicyFailed) or (failure is not None and not each.status.usable):
            unfinished.append(played.assignment)
        else:
            ready.append(played)
    return failure


def _caused(what: str, error: Exception) -> PlayError:
    """Return the error of a play for an error of any kind."""
    if isinstance(error, PlayError):
        return error
    failure = PoolError(f"{what}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
