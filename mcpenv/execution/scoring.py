"""Score one episode, by the environment's `score`, its rubric and its verifier."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from mcpenv.errors import InvalidVerifier, VerifierFailed, WorldUnreadable
from mcpenv.failures import environment_failure, may_be_of_state
from mcpenv.rewards.rubrics import Rubric
from mcpenv.rewards.rubrics.episode_rubric import EpisodeRubric
from mcpenv.rewards.rubrics.rubric import is_async
from mcpenv.rewards.verifiers import Evidence, Verdict, check, of_verdict, run
from mcpenv.rewards.verifiers.specs import refuse_huge
from mcpenv.tasks.assignment import assignment_of
from mcpenv.tracing import part
from mcpenv.worlds import Tree, capture
from mcpenv_client.errors import InvalidMessage, OperationTimeout
from mcpenv_client.types.checked import MAX_CHECKED, CheckedChange
from mcpenv_client.types.records import Reward, ToolCall, ToolOutcome, Trajectory, reward_of, total
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.texts import well_formed

from .concurrency.threads import THREADS
from .current_step import NOT_SCORED, Step
from .second_instance import works_after_reset
from .snapshots.snapshot import HeldEpisode

if TYPE_CHECKING:
    from .instance import Instance

logger = logging.getLogger("mcpenv")

VERIFIED = "verified"
"""The component of the reward that verification gives."""

MAX_PROBLEMS, MAX_CHANGES, MAX_SENTENCE = 21, 50, 500
"""Maximum number of problems and of changes that an episode keeps, and maximum characters of each."""

CAPTURE_SHARE = 0.7
"""The part of the deadline of a verification that capturing the world may take."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError, WorldUnreadable)
"""The exceptions of a capture that only the content of the world causes."""

_REWARDS = (Reward, float, int, type(None))
"""The types of most scores, none of which is awaitable."""


@dataclass(slots=True)
class Attempt:
    """One run of the verifier.

    Attributes:
        evidence: the captured world; None if it could not be captured.
        reward: the result.
        error: the exception with which it failed, which the content of the world may have caused.
    """

    evidence: Evidence | None = None
    reward: Reward | None = None
    error: Exception | None = None


class Scoring:
    """The scoring of one episode. The caller holds the environment's lock.

    Attributes:
        ended: True if scoring of the end has begun. No further step may begin.
        before: the world after the reset; None without a world, or if nothing verifies the end.
        problems: the reasons why the end failed verification, as sentences.
        changes, evidence: the changes of the world that verification saw, as sentences and as data.
    """

    __slots__ = (
        "_env",
        "_hooks",
        "_of_agents",
        "_rubric",
        "_task",
        "_traces",
        "_user_code",
        "_verifies",
        "_within_s",
        "before",
        "changes",
        "ended",
        "evidence",
        "problems",
    )

    def __init__(self, at: Instance) -> None:
        # `close` may empty the instance while its end is scored.
        self._user_code, self._env, self._hooks = at.user_code, at.env, at.hooks
        self._rubric: EpisodeRubric | None = None
        self._task: Task | None = None
        self._verifies = False
        self._traces, self._of_agents = at.traces, at.played_by_agents
        self._within_s: float | None = None
        self.before: Tree | None = None
        self.ended = False
        self.problems: list[str] = []
        self.changes: list[str] = []
        self.evidence: list[CheckedChange] = []

    async def begin(self, task: Task | None, timeout_s: float | None) -> None:
        """Begin an episode, after the user's reset.

        Raises:
            InvalidMessage: the task's verifier cannot be used, in general or with this environment.
            ExecutionError: the rubric's constructor raised, or capturing the world did.
            OperationTimeout: the constructor or capturing took too long.
        """
        await self._copy_rubric(timeout_s)
        self._task = task
        self._verifies = self._hooks.verifies or self._spec is not None
        if self._verifies:
            self._within_s = _share(self._user_code.limit(timeout_s))
            self.before = await self._user_code.stage(
                "verify", lambda: self._user_code.call(self._world_to_verify), timeout_s
            )

    async def resume(self, held: HeldEpisode, timeout_s: float | None) -> None:
        """Continue the episode of a snapshot. The caller restores the state of `rubrics`.

        Raises:
            ExecutionError: the rubric's constructor raised.
            OperationTimeout: the constructor took too long.
        """
        await self._copy_rubric(timeout_s)
        self._task, self._verifies = held.trajectory.task, held.verified
        if held.verified:
            # A snapshot may be restored several times, and `verify` may change its evidence.
            self.before = copy.deepcopy(held.before)

    @property
    def rubrics(self) -> list[Rubric]:
        """The episode's rubric and its parts; empty without one."""
        return [] if self._rubric is None else self._rubric.rubrics

    @property
    def verifies(self) -> bool:
        """True if the end will be verified."""
        return self._verifies

    @property
    def owes_end(self) -> bool:
        """True if the end is still to be scored, which happens once."""
        return not self.ended and (self._rubric is not None or self._verifies)

    async def of_step(self, step: Step, outcome: ToolOutcome) -> Reward | None:
        """Return the reward of a step: `score`, its own observation, the rubric and ``finish``.

        Raises:
            ExecutionError, OperationTimeout: scoring failed.
        """
        scored = step.score
        try:
            if scored is NOT_SCORED:
                if self._traces:
                    with part("score"):
                        scored = await _awaited(await self._score(step.call, outcome))
                else:
                    scored = await self._score(step.call, outcome)
            if not isinstance(scored, _REWARDS):
                scored = await _awaited(scored)
        except BaseException as error:
            if self._user_code.lets_through(error):
                raise
            raise environment_failure("score", error) from error
        if step.fault is not None:
            raise step.fault
        of_rubric = None
        # No user code may run at the same time as a tool that could not be stopped.
        if self._rubric is not None and self._rubric.scores_steps and not self._user_code.abandoned:
            of_rubric = await self._ask_rubric(self._rubric.of_step, step.call, outcome)
        own, finish = outcome.observation, step.finish
        try:
            if own is None and of_rubric is None and finish is None:
                return reward_of(scored)
            return total(
                scored, None if own is None else own.reward, of_rubric, None if finish is None else finish.reward
            )
        except (TypeError, ValueError) as error:
            raise environment_failure("score", error) from error

    async def _score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
        """Call `score` after an async tool, or after a call that was refused before its tool ran."""
        if self._user_code.affine:
            return await self._user_code.hand_over(None, self._env.score, call, outcome)
        return self._env.score(call, outcome)

    async def of_end(self, trajectory: Trajectory) -> Reward | None:
        """Return the reward of the end, by rubric and verifier.

        Args:
            trajectory: the whole episode. Its ``verified``, ``problems`` and ``changes`` are set here.

        Raises:
            ExecutionError, OperationTimeout: the rubric or the verifier failed.
        """
        # First, because the end is scored once: a failure must not lead to another try.
        self.ended = True
        if self._verifies:
            trajectory.verified = await self._verify(trajectory)
            trajectory.problems = [*trajectory.problems, *_readable(self.problems, MAX_PROBLEMS)]
            trajectory.changes, trajectory.evidence = self.changes, self.evidence
        if self._rubric is None:
            return trajectory.verified
        reward = await self._ask_rubric(self._rubric.of_trajectory, trajectory)
        return reward if self._rubric.has_verified else self.total(reward, trajectory.verified)

    @staticmethod
    def total(*parts: Reward | None) -> Reward | None:
        """Return the sum of rewards.

        Raises:
            ExecutionError: the sum is infinite.
        """
        try:
            return total(*parts)
        except ValueError as error:
            raise environment_failure("rubric", error) from error

    # -- the rubric

    async def _copy_rubric(self, timeout_s: float | None) -> None:
        if self._env.rubric is not None:
            # The constructor is user code, which may be slow.
            self._rubric = await self._user_code.stage(
                "rubric", lambda: self._user_code.call(self._episode_rubric), timeout_s
            )

    def _episode_rubric(self) -> EpisodeRubric:
        rubric = self._env.rubric
        if not isinstance(rubric, Rubric):
            raise TypeError(f"rubric is a {type(rubric).__name__}; it is a Rubric or None")
        return EpisodeRubric(rubric, self._env)

    async def _ask_rubric(self, of: Callable[..., Any], *about: Any) -> Reward | None:
        with part("rubric") if self._traces else nullcontext():
            reward: Reward | None = await self._user_code.stage("rubric", lambda: of(*about, self._call))
        return reward

    async def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await (fn(*args) if is_async(fn) else self._user_code.hand_over(None, fn, *args))

    # -- the verifier

    @property
    def _spec(self) -> dict[str, Any] | None:
        """The verifier of the task, unless the environment verifies its tasks itself."""
        return None if self._task is None or self._hooks.verifies_tasks else self._task.verifier

    def _world_to_verify(self) -> Tree | None:
        task, spec, world = self._task, self._spec, self._env.world
        if task is not None and spec is not None:
            try:
                check(spec, has_world=world is not None)
            except InvalidVerifier as error:
                raise InvalidMessage(f"task {task.id!r}: {error}") from error
        return None if world is None else capture(world, self._within_s)

    async def _verify(self, trajectory: Trajectory) -> Reward | None:
        self._within_s = _share(self._user_code.limit())
        with part("verify") if self._traces else nullcontext():
            reward = await self._ask_verifier(trajectory)
        return None if reward is None else Reward(reward.value, _named(reward))

    async def _ask_verifier(self, trajectory: Trajectory) -> Reward | None:
        """Return the reward of the end. If what the agent did breaks verification, it is the lowest."""
        first = await self.attempt()
        error, reward = first.error, first.reward
        if first.evidence is None and isinstance(error, UNREADABLE):
            # It was captured after the reset, so that the agent's changes are the cause.
            return self._broken(f"the world cannot be read: {error}", error)
        if error is not None:
            # Never an escape from a low reward: an episode without one is left out of its group.
            if not await self._agent_is_cause(first, error, trajectory):
                if isinstance(error, OperationTimeout):
                    raise error
                raise environment_failure("verify", error) from error
            reward = self._broken(f"verification fails on this world: {type(error).__name__}: {error}", error)
        if first.evidence is not None and not self._user_code.abandoned:
            self.changes, self.evidence = await self._user_code.hand_over(None, _changes_of, first.evidence)
        return reward

    def _broken(self, problem: str, error: Exception) -> Reward:
        logger.warning("the agent has broken its verification: %s", problem, exc_info=error)
        self.problems = [problem]
        return of_verdict(False, self._task)

    async def _agent_is_cause(self, first: Attempt, error: Exception, trajectory: Trajectory) -> bool:
        """Return True if verification works on the state after the reset, and fails again on the present one."""
        if not self._of_agents or (self._user_code.abandoned and self._user_code.affine):
            return False  # in the second case unknown: the only thread that may run this code does not return
        works = bool(first.evidence and self.before is not None) and (await self.attempt(of_reset=True)).error is None
        if not works and (isinstance(error, OperationTimeout) or may_be_of_state(error)):
            # Verifiers also read the environment's attributes and files, which only another instance has as they were.
            assigned = assignment_of(trajectory, declares_task=self._hooks.options.declares("task"))
            works = await works_after_reset(self._env, replace(assigned, task=self._task))
        return works and (await self.attempt()).error is not None

    async def attempt(self, *, of_reset: bool = False) -> Attempt:
        """Verify once, within the deadline: the present world, or the one after the reset.

        Raises:
            ExecutionError: an exception that is never caused by the content of a world.
        """
        tried = Attempt()

        async def verify() -> None:
            try:
                tried.evidence = await self._user_code.call(self._evidence, of_reset)
                tried.reward = await self._judge(tried.evidence)
            except Exception as error:
                if not isinstance(error, VerifierFailed | WorldUnreadable) and not may_be_of_state(error):
                    raise
                tried.error = error

        try:
            await self._user_code.stage("verify", verify)
        except OperationTimeout as error:
            tried.error = error
        return tried

    async def _judge(self, evidence: Evidence) -> Reward | None:
        spec, self.problems = self._spec, evidence.said
        if spec is not None:
            return await run(spec, evidence, THREADS.run)
        if self._hooks.verify_is_async:
            return _worth(await self._user_code.call(self._env.verify, evidence), evidence)
        found = await self._user_code.hand_over(None, self._env.verify, evidence)
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):  # closed, as Python warns about a coroutine that was never awaited
                found.close()
            raise TypeError("verify gave an awaitable; declare it `async def`")
        return _worth(found, evidence)

    def _evidence(self, of_reset: bool) -> Evidence:
        world, before, after = self._env.world, self.before, None
        if of_reset:
            # `verify` may change its evidence.
            before, after = copy.deepcopy(before), copy.deepcopy(before)
        elif world is not None:
            after = capture(world, self._within_s)
        return Evidence(self._task, before, after, named=isinstance(world, Mapping))


def _changes_of(evidence: Evidence) -> tuple[list[str], list[CheckedChange]]:
    """Return the first changes of the world, as sentences and as data; none if it is too large to look for them."""
    if evidence.before is None or evidence.after is None:
        return [], evidence.checked
    try:
        refuse_huge(evidence.before, evidence.after)
        found = evidence.changes
    except (ValueError, VerifierFailed):
        return [], evidence.checked
    more = [f"and {len(found) - MAX_CHANGES} more"] if len(found) > MAX_CHANGES else []
    data = evidence.checked or found.checked or [change.checked() for change in found[:MAX_CHECKED]]
    return [*_readable([change.sentence for change in found[:MAX_CHANGES]], MAX_CHANGES), *more], data


def _readable(sentences: Iterable[Any], count: int) -> list[str]:
    """Return the first sentences, cut to `MAX_SENTENCE`, without lone surrogates."""
    return [well_formed(str(sentence)[:MAX_SENTENCE]) for sentence in islice(sentences, count)]


def _share(limit_s: float | None) -> float | None:
    """Return the part of a time limit that a capture may use, so that it stops by itself."""
    return None if limit_s is None else CAPTURE_SHARE * limit_s


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _worth(found: Any, evidence: Evidence) -> Reward | None:
    """Convert the result of an environment's own `verify` to a reward. Keep the reasons for a low one."""
    if isinstance(found, Verdict):
        evidence.take(found)
    judged = isinstance(found, bool | Verdict)
    worth = of_verdict(bool(found), evidence.task) if judged else reward_of(found)
    if worth is not None and not evidence.said and (worth.value <= 0 or (judged and not found)):
        evidence.said.append(f"verify returned {bool(found) if judged else f'{worth.value:g}'}")
    return worth


def _named(reward: Reward) -> dict[str, float]:
    parts: dict[str, Any] = {f"{VERIFIED}/{name}": value for name, value in reward.components.items()}
    return {VERIFIED: reward.value, **parts}
