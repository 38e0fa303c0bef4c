"""Play a share in one session: from the reset, or the common state of its forks, to the records."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mcpenv_client.errors import (
    CapacityReached,
    ConnectionFailed,
    EpisodeDone,
    ExecutionError,
    NotSupported,
    WireError,
)
from mcpenv_client.scores import whole_status
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.starts import Start
from mcpenv_client.types.status import COMPLETED, Status, StatusCode

from .assignment import Assignment, Played, Share
from .backend import JournalError, PoolError
from .clock import Clock
from .episode import (
    AsyncPolicy,
    Begin,
    BlockingEpisode,
    BlockingPolicy,
    Episode,
    Outcome,
    OutOfTime,
    PolicyFailed,
    RunningEpisode,
)
from .remote_errors import text_of
from .sessions import BlockingSession, Session

E = TypeVar("E", bound=RunningEpisode)

logger = logging.getLogger("mcpenv")

TIMEOUT = "episode_timeout"
"""The reason of an episode that reached its time limit."""

POLICY_ERROR = "policy_error"
"""The reason for the end of an episode after its policy raised."""

_FAILED = Status(StatusCode.ENV_ERROR, None, True)
_ABANDONED = Status(StatusCode.CANCELLED, None, False, POLICY_ERROR)


@dataclass(frozen=True)
class _Ending:
    """The way in which the pool ends an episode.

    Attributes:
        reason: the reason for truncation; None if the policy returned.
        late: the text of a call after the end.
        raised: the error of the policy itself.
    """

    reason: str | None = None
    late: str | None = None
    raised: Exception | None = None

    @classmethod
    def after(cls, error: Exception, episode: RunningEpisode) -> _Ending:
        """Return the way to end an episode after its policy raised."""
        if isinstance(error, (OutOfTime, asyncio.TimeoutError)) and episode.left_s == 0.0:
            return cls(reason=TIMEOUT)
        if isinstance(error, EpisodeDone) and episode.done:
            return cls(late=str(error))
        return cls(reason=POLICY_ERROR, raised=error)


class _Start:
    """The state from which the episodes of a share begin. If there are several, the state is saved after the reset."""

    def __init__(self, session: Session, share: Share) -> None:
        self._session = session
        self._forks = len(share) > 1
        self._held: Any = None

    async def begin(self, assignment: Assignment) -> StepResult[Any]:
        """Reset the session, or open the recorded episode; the next times, restore the state after that.

        Raises:
            PoolError: the environment cannot be saved.
        """
        start = assignment.row
        if not isinstance(start, Start):
            return await self._first(lambda: self._session.reset(seed=assignment.seed, **assignment.options))
        first = await self._first(lambda: self._session.branch(start, start.step))
        info = {name: value for name, value in first.info.items() if name != "reward"}
        return dataclasses.replace(first, reward=None, info=info)  # of the parent's step

    async def _first(self, begin: Callable[[], Awaitable[StepResult[Any]]]) -> StepResult[Any]:
        if self._held is not None:
            return await self._restore()
        first = await begin()
        if self._forks:
            try:
                self._held = await self._session.snapshot()
            except (NotSupported, CapacityReached) as error:
                raise PoolError(
                    f"the episodes of a group cannot be forks of one state: {error}. Without forks=True each begins "
                    "with a reset of its own"
                ) from error
        return first

    async def _restore(self) -> StepResult[Any]:
        try:
            return await self._session.restore(self._held)
        except WireError as error:
            if error.status is not None:
                raise
            raise ExecutionError(f"the state of the group is lost: {error}") from error

    async def drop(self) -> None:
        """Delete the saved state."""
        if self._held is None:
            return
        try:
            await self._session.drop_snapshot(self._held)
        except (WireError, ConnectionFailed) as error:  # the next use of the session reports more
            logger.warning("pool: a snapshot was not deleted: %s", error)


async def play(
    session: Session, begin: Begin, share: Share, clock: Clock, gate: asyncio.Semaphore | None = None
) -> list[Outcome]:
    """Play a share with an async policy, one episode after the other.

    Args:
        session: the session to play in.
        begin: the policy, and the limits of each episode.
        share: the share to play.
        clock: the clock of the limits. While it is stopped, nothing begins.
        gate: awaited between the reset and the policy, so that more episodes can be reset than run; None: no gate.

    Raises:
        WireError: the reset was refused without a status, because the assignment cannot be played.
        PoolError: the share has several episodes, and the environment cannot be saved.
    """
    policy = cast("AsyncPolicy", begin.policy)
    return await _play(
        session,
        share,
        begin,
        clock.running,
        lambda assignment, first: Episode(session, assignment, first, begin.limits, clock),
        lambda episode: clock.limited(policy(episode), episode.deadline),
        lambda: contextlib.nullcontext() if gate is None else gate,
    )


def play_blocking(
    session: BlockingSession, begin: Begin, share: Share, clock: Clock, gate: threading.Semaphore | None = None
) -> list[Outcome]:
    """Play a share with a policy that is a plain function. Arguments and errors are the same as for `play`."""
    policy = cast("BlockingPolicy", begin.policy)

    async def run(episode: BlockingEpisode) -> Any:
        return policy(episode)

    async def running() -> None:
        clock.wait()

    playing = _play(
        cast("Session", _Awaitable(session)),
        share,
        begin,
        running,
        lambda assignment, first: BlockingEpisode(session, assignment, first, begin.limits, clock),
        run,
        lambda: contextlib.nullcontext() if gate is None else _awaitable(gate),
    )
    try:
        playing.send(None)
    except StopIteration as done:
        outcomes: list[Outcome] = done.value
        return outcomes
    raise RuntimeError("a blocking session has suspended")


class _Awaitable:
    """A blocking session with the methods of an async one. They never suspend, so that no event loop is needed."""

    def __init__(self, session: BlockingSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._session, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call


@contextlib.asynccontextmanager
async def _awaitable(gate: threading.Semaphore) -> AsyncIterator[None]:
    with gate:
        yield


async def _play(
    session: Session,
    share: Share,
    begin: Begin,
    running: Callable[[], Awaitable[None]],
    episode_of: Callable[[Assignment, StepResult[Any]], E],
    run: Callable[[E], Awaitable[Any]],
    gate: Callable[[], AbstractAsyncContextManager[Any]],
) -> list[Outcome]:
    """Play a share.

    Args:
        session: as for `play`.
        share: the share to play.
        begin: as for `play`.
        running: waits while the pool is paused.
        episode_of: makes the running episode from the result of a reset.
        run: lets the policy play an episode, and returns its value.
        gate: makes the context of each policy, entered after the reset.
    """
    start = _Start(session, share)
    outcomes: list[Outcome] = []
    journal = None if begin.log is None else begin.log.journal(share)
    for assignment in share:
        await running()
        began = time.monotonic()
        ending, value = _Ending(), None
        try:
            first = await start.begin(assignment)
            async with gate():
                episode = episode_of(assignment, first)
                episode.journal = journal
                if not first.done:
                    try:
                        value = await run(episode)
                    except (WireError, ConnectionFailed, JournalError):
                        raise
                    except asyncio.CancelledError:
                        await episode.stop()
                        raise
                    except Exception as error:  # noqa: BLE001 - a policy may raise anything
                        ending = _Ending.after(error, episode)
                    else:
                        if episode.left_s == 0.0 and not episode.done:
                            ending = _Ending(reason=TIMEOUT)  # a blocking policy, or its last call, was not stopped
                    await episode.settle()
            result = await _end(session, episode, ending)
            trajectory = await session.trajectory() if begin.trajectories else None
        except (WireError, ConnectionFailed) as failure:
            played = failed(assignment, failure, time.monotonic() - began)
        else:
            lasted_s = time.monotonic() - began
            about: dict[str, Any] = {
                "value": value,
                "turns": episode.turns,
                "duration_s": lasted_s,
                "error": ending.late,
            }
            if trajectory is not None:
                played = Played.of(assignment, trajectory, trajectory.status or _FAILED, **about)
            else:
                played = Played(assignment, result.status, reward=result.reward, parts=result.parts, **about)
            if begin.mask_failed_steps:
                played = _masked(played, episode)
        outcomes.append(_outcome(played, ending))
        if is_lost(outcomes[-1]):
            return _with_the_rest(outcomes, share)
    await start.drop()
    return outcomes


@dataclass(frozen=True)
class _Result:
    """The return of an episode, the parts of its rewards, and its status, as its end reports them."""

    reward: float | None
    parts: Mapping[str, float]
    status: Status


async def _end(session: Session, episode: RunningEpisode, ending: _Ending) -> _Result:
    """End an episode. A conversation ends its own, unless the policy failed or a step ended it."""
    if episode.conversation is not None and ending.reason is None and not episode.done:
        summary = await episode.conversation.end()
        return _Result(summary.reward, summary.parts, summary.status)
    last = await session.end(truncated=ending.reason is not None, reason=ending.reason)
    episode.ended(last)
    status = last.episode_status or COMPLETED
    return _Result(last.info.get("return") if status.usable else None, episode.parts, status)


def failed(assignment: Assignment, error: WireError | ConnectionFailed, duration_s: float) -> Played:
    """Return an episode in which the environment failed.

    Raises:
        WireError: the error has no status, because the environment refused the request.
    """
    if isinstance(error, WireError) and error.status is None:
        raise error
    return Played(assignment, error.status or _FAILED, duration_s=duration_s, error=str(error))


def _masked(played: Played, episode: RunningEpisode) -> Played:
    """Return the episode without a reward, with the status of its first step that is not about the agent, if any."""
    found = episode.failed if played.trajectory is None else whole_status(played.trajectory)
    if found is None or found.usable or not played.status.usable:
        return played
    why = f"a step failed: {found.code.value}"
    return dataclasses.replace(played, status=found, reward=None, error=played.error or why)


def _outcome(played: Played, ending: _Ending) -> Outcome:
    if ending.raised is None:
        return played
    text = text_of(ending.raised)
    failure = PolicyFailed(dataclasses.replace(played, status=_ABANDONED, reward=None, error=text))
    failure.__cause__ = ending.raised
    return failure


def _with_the_rest(outcomes: Sequence[Outcome], share: Share) -> list[Outcome]:
    """Add the episodes that were not begun because their environment was lost earlier."""
    last = played_of(outcomes[-1])
    why = f"not begun: its environment was lost in episode {last.assignment.number} of its group"
    rest = share[len(outcomes) :]
    return [*outcomes, *(Played(each, _FAILED, duration_s=0.0, error=why) for each in rest)]


def played_of(outcome: Outcome) -> Played:
    """Return the episode of an outcome."""
    return outcome.played if isinstance(outcome, PolicyFailed) else outcome


def is_lost(outcome: Outcome) -> bool:
    """Return True if the environment failed to end the episode, so that it is not used again."""
    return not played_of(outcome).ended


def are_fit(outcomes: Sequence[Outcome]) -> bool:
    """Return True if the environment of these episodes may be used again."""
    return all(each.ended if isinstance(each, PolicyFailed) else each.status.usable for each in outcomes)


def changed(outcome: Outcome, **fields: Any) -> Outcome:
    """Return the outcome with other values of some fields of its episode."""
    if not isinstance(outcome, PolicyFailed):
        return dataclasses.replace(outcome, **fields)
    failure = PolicyFailed(dataclasses.replace(outcome.played, **fields))
    failure.__cause__ = outcome.__cause__
    return failure
