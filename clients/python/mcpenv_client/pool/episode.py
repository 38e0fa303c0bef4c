"""The running episode that a policy plays, async and blocking."""

from __future__ import annotations

import asyncio
import functools
import inspect
import operator
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mcpenv_client.conversation import Conversation
from mcpenv_client.errors import EpisodeDone, McpenvError
from mcpenv_client.formats.prompts import images_of, prompt_of
from mcpenv_client.samples import SampledTurn
from mcpenv_client.types.actions import Action
from mcpenv_client.types.records import StepResult, Trajectory, summed
from mcpenv_client.types.starts import Start
from mcpenv_client.types.status import Status
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.turns import Turn

from .assignment import Assignment, Limits, Played, PlayError
from .clock import Clock
from .remote_errors import arrived_error, pickled_error
from .sessions import BlockingSession, Session

if TYPE_CHECKING:
    from .checkpoint import PlayLog
    from .share_journal import ShareJournal

T = TypeVar("T")

LATE_S = 2.0
"""The seconds after the time limit of an episode within which a running call may still return."""


class OutOfTime(McpenvError):
    """Raised in a policy that calls a tool after the episode's time limit. It ends the policy."""


class PolicyFailed(PlayError):
    """Raised if a policy raised. ``__cause__`` is its error.

    From another process the error comes with its own cause, a `RemoteTraceback`. An error that cannot be pickled does
    not come; then that is the cause.

    Attributes:
        played: the unfinished episode, with the traceback in ``error``.
        finished: what had finished and was not yielded: of `EnvPool.rollout` all episodes, in order; of groups those of
            groups that were not whole.
        unfinished: the other episodes, as of `Stream`.
    """

    def __init__(self, played: Played) -> None:
        super().__init__(played.error)
        self.played = played

    def __reduce__(self) -> tuple[Callable[[Played, bytes], PolicyFailed], tuple[Played, bytes]]:
        return _arrived, (self.played, pickled_error(self.__cause__))

    @property
    def ended(self) -> bool:
        """True if the environment ended the episode without a failure of its own."""
        return self.played.ended


def _arrived(played: Played, cause: bytes) -> PolicyFailed:
    failure = PolicyFailed(played)
    failure.__cause__ = arrived_error(cause, played.error or "")
    return failure


Outcome = Played | PolicyFailed
"""The outcome of an episode: `PolicyFailed` if its policy raised."""


def _numbers(name: str, given: Iterable[Any], kind: Callable[[Any], T]) -> list[T]:
    """Return plain numbers for a list, an array or a tensor.

    Raises:
        TypeError: it has something else.
    """
    try:
        return [kind(each) for each in given]
    except (TypeError, ValueError) as error:
        what = "integers" if kind is operator.index else "numbers"
        raise TypeError(f"wrote: {name} must be a sequence of {what}: {error}") from error


class RunningEpisode:
    """The common parts of both kinds of episodes: beginning, rewards, deadline.

    Attributes:
        assignment: the assignment of the episode.
        first: the result of the reset.
        prompt: the prompt for an agent.
        start: the step of a recorded episode that it continues; None without one, and if a server has the record.
        done: True if the episode is over.
        last: the result of the last step; before the first step, the result of the reset.
        conversation: the conversation of a model with it; None without one.
        turns: the model's answers as tokens, which `wrote` kept.
        failed: the status of the first step that failed by no fault of the agent; None if there is none.
        journal: keeps a chat for the pool's checkpoint; None without one.
    """

    failed: Status | None = None
    conversation: Conversation | None = None
    journal: ShareJournal | None = None
    _keeps_chat = False

    def __init__(self, assignment: Assignment, first: StepResult[Any], limits: Limits, clock: Clock) -> None:
        self.assignment = assignment
        self.first = self.last = first
        row = assignment.row
        self.start = row if isinstance(row, Start) and isinstance(row.record, Trajectory) else None
        self.prompt = prompt_of(first) if self.start is None else self.start.prompt
        self.done = first.done
        self.turns: list[SampledTurn] = []
        self._rewards: list[float] = []
        self._parts: dict[str, list[float]] = {}
        self._count(first)
        self._before = row.step if isinstance(row, Start) else 0
        for step in () if self.start is None else self.start.trajectory.steps:
            for name, value in ({} if step.reward is None else step.reward.components).items():
                self._parts.setdefault(name, []).append(value)
        self._limits = limits
        self._clock = clock
        self.deadline = clock.now() + limits.episode_timeout_s

    @property
    def total(self) -> float:
        """The sum of the rewards of the steps so far."""
        return summed(self._rewards)

    def wrote(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int],
        logprobs: Sequence[float] | None = None,
        *,
        policy_version: int | None = None,
    ) -> None:
        """Keep an answer of the model as tokens, for `EnvPool.samples`. The steps that follow are its own.

        Args:
            prompt_ids: all tokens that the model was given; a list, or an array or tensor of one dimension.
            ids: the sampled tokens, as such.
            logprobs: the log-probability of each sampled token, as such; None if they are unknown.
            policy_version: the version of the weights that sampled it.

        Raises:
            ValueError: there is not one log-probability for each token.
            TypeError: an argument has something else than numbers.
        """
        prompt = _numbers("prompt_ids", prompt_ids, operator.index)
        sampled = _numbers("ids", ids, operator.index)
        known = None if logprobs is None else _numbers("logprobs", logprobs, float)
        self.turns.append(SampledTurn(prompt, sampled, known, [], len(self.turns), policy_version))
        if self.journal is not None and self._keeps_chat:
            self.journal.wrote(prompt, sampled, known, policy_version)

    @property
    def parts(self) -> dict[str, float]:
        """The sums of the named parts of the rewards so far."""
        return {name: summed(values) for name, values in self._parts.items()}

    @property
    def left_s(self) -> float:
        """The seconds until the time limit; 0 after it, also if it had passed before a restart."""
        return 0.0 if self._over else max(self.deadline - self._clock.now(), 0.0)

    @property
    def _over(self) -> bool:
        return self.journal is not None and self.journal.out_of_time

    def _late(self) -> OutOfTime:
        return OutOfTime(f"the episode has reached its limit of {self._limits.episode_timeout_s:g} s")

    def _timeout(self, given: float | None) -> float | None:
        """Return the deadline of a call.

        Raises:
            OutOfTime: the time limit is reached.
            EpisodeDone: the episode is over.
        """
        if self.done:
            raise EpisodeDone("the episode is over; return from the policy")
        if self.left_s == 0.0:
            raise self._late()
        asked = given if given is not None else self._limits.step_timeout_s
        return None if asked is None else min(asked, self.left_s + LATE_S)

    @property
    def _turn(self) -> SampledTurn | None:
        """The last answer of the model, whose step a call is that begins now; None without one."""
        return self.turns[-1] if self.turns else None

    def _took(self, result: StepResult[Any], turn: SampledTurn | None) -> StepResult[Any]:
        """Count a step of a turn."""
        self.last, self.done = result, result.done
        if self.failed is None and result.status is not None and not result.status.usable:
            self.failed = result.status
        self._rewards.append(result.reward or 0.0)
        if turn is not None:
            turn.steps.append(self._before + len(self._rewards))
        self._count(result)
        return result

    def _count(self, result: StepResult[Any]) -> None:
        parts = result.info.get("reward")
        for name, value in (parts if isinstance(parts, Mapping) else {}).items():
            self._parts.setdefault(name, []).append(value)

    def ended(self, result: StepResult[Any]) -> None:
        """Take the result of the end. If a step ended the episode, it is that step's result again, with its status."""
        if result.status is None:
            self._count(result)

    async def settle(self) -> None:
        """Wait for the running calls of a policy that has ended; cancel those without a deadline after `LATE_S`."""

    async def stop(self) -> None:
        """Cancel the running calls."""


class Episode(RunningEpisode):
    """The running episode that an async policy plays.

    The pool resets it before the policy runs, and ends it afterwards.
    """

    def __init__(
        self, session: Session, assignment: Assignment, first: StepResult[Any], limits: Limits, clock: Clock
    ) -> None:
        super().__init__(assignment, first, limits, clock)
        self.session = session
        self._calls: set[asyncio.Future[Any]] = set()

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        """Call one tool, as a step.

        Raises:
            EpisodeDone: the episode is over.
            OutOfTime: the time limit is reached.
            WireError: the environment failed.
        """
        await self._clock.running()
        return await self._taken(self.session.call_tool(name, arguments, timeout_s=self._timeout(timeout_s)))

    async def step(self, action: Action, *, timeout_s: float | None = None) -> StepResult[Any]:
        """Take one step. Raises as `call_tool`."""
        await self._clock.running()
        return await self._taken(self.session.step(action, timeout_s=self._timeout(timeout_s)))

    async def list_tools(self) -> list[Tool]:
        """Return the tools. Listing is not a step."""
        if self._over:
            raise self._late()
        return await self._whole(self.session.list_tools())

    async def chat(self, **options: Any) -> Conversation:
        """Return the conversation of a model with this episode. It begins with the calls that a start has in common.

        Args:
            options: the options of `Conversation`.
        """
        self.conversation = conversation = _Conversation(_Shielded(self), **options)
        images = images_of(self.first) if self.start is None else ()
        conversation.join(self.prompt, await self.list_tools(), images, info=self.first.info)
        if self.start is not None:
            conversation.follow(self.start.trajectory.steps)
        if self.journal is not None:
            for message, wrote in self.journal.said(self.assignment.number):
                for prompt_ids, ids, logprobs, version in wrote:
                    self.wrote(prompt_ids, ids, logprobs, policy_version=version)
                await conversation.act(message)
            conversation.says = functools.partial(self.journal.says, self.assignment.number)
            self._keeps_chat = True  # what the journal has is not kept again
        return conversation

    async def _taken(self, call: Awaitable[StepResult[Any]]) -> StepResult[Any]:
        """Await a step. It counts when it returns, also if the policy waits no longer."""
        turn = self._turn

        def count(future: asyncio.Future[StepResult[Any]]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._took(future.result(), turn)

        return await self._whole(call, count)

    async def _whole(self, call: Awaitable[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> T:
        """Await a call that continues if the policy is stopped, because cancelling it would lose the session."""
        future = asyncio.ensure_future(call)
        self._calls.add(future)
        if then is not None:
            future.add_done_callback(then)  # runs before those who wait
        future.add_done_callback(self._returned)
        return await asyncio.shield(future)

    def _returned(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # the policy may be gone, and asyncio would report an error that nobody retrieved

    async def settle(self) -> None:
        """Wait for the running calls, as the base class says."""
        limited = self._limits.step_timeout_s is not None
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=None if limited else LATE_S)
        await self.stop()

    async def stop(self) -> None:
        """Cancel the running calls."""
        running = set(self._calls)
        for call in running:
            call.cancel()
        if running:
            await asyncio.wait(running)


class _Conversation(Conversation):
    """A conversation whose messages of the model are kept for the pool's checkpoint, before their calls are made."""

    says: Callable[[Mapping[str, Any] | str], None] | None = None

    async def act(self, message: Mapping[str, Any] | str, *, timeout_s: float | None = None) -> Turn:
        """Make the calls of the model's message."""
        if self.says is not None:
            self.says(message)
        return await super().act(message, timeout_s=timeout_s)


class _Shielded:
    """The session of a chat: its calls count as the episode's, and continue when the policy is cancelled."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    async def reset(self, seed: int | None = None, **options: Any) -> StepResult[Any]:
        raise RuntimeError("the pool resets the episodes that a policy plays")

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        return await self._episode.call_tool(name, arguments, timeout_s=timeout_s)

    async def list_tools(self) -> list[Tool]:
        return await self._episode.list_tools()

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Any]:
        return await self._episode.session.end(truncated=truncated, reason=reason)


class BlockingEpisode(RunningEpisode):
    """The running episode that a policy which is a plain function plays."""

    def __init__(
        self, session: BlockingSession, assignment: Assignment, first: StepResult[Any], limits: Limits, clock: Clock
    ) -> None:
        super().__init__(assignment, first, limits, clock)
        self.session = session

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        """Call one tool, as a step. Raises as `Episode.call_tool`."""
        self._clock.wait()
        result = self.session.call_tool(name, arguments, timeout_s=self._timeout(timeout_s))
        return self._took(result, self._turn)

    def step(self, action: Action, *, timeout_s: float | None = None) -> StepResult[Any]:
        """Take one step. Raises as `Episode.call_tool`."""
        self._clock.wait()
        return self._took(self.session.step(action, timeout_s=self._timeout(timeout_s)), self._turn)

    def list_tools(self) -> list[Tool]:
        """Return the tools. Listing is not a step."""
        if self._over:
            raise self._late()
        return self.session.list_tools()


AsyncPolicy = Callable[[Episode], Coroutine[Any, Any, Any]]
BlockingPolicy = Callable[[BlockingEpisode], Any]
Policy = AsyncPolicy | BlockingPolicy
"""A function that plays an episode: async with an `Episode`, or plain with a `BlockingEpisode`. Its return value is
`Played.value`.
"""


def is_async(policy: Policy) -> bool:
    """Return True if a policy is async: a coroutine function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(type(policy).__call__)


@dataclass(frozen=True)
class Begin:
    """What begins a rollout.

    Attributes:
        policy: plays each episode.
        limits: the limits of each episode.
        trajectories: False to leave the records of the episodes where they were made.
        mask_failed_steps: give an episode the status of its first step that failed by no fault of the agent.
        log: the log of the play, for its checkpoint; None without one.
    """

    policy: Policy
    limits: Limits
    trajectories: bool = True
    mask_failed_steps: bool = False
    log: PlayLog | None = None

    @property
    def is_async(self) -> bool:
        """True if the policy is async."""
        return is_async(self.policy)
