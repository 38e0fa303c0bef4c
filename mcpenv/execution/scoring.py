"""Score one episode, by the environment's `score`, its rubric and its verifier."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from mcpenv.errors import InvalidVerifier
from mcpenv.failures import environment_failure
from mcpenv.rewards.rubrics import Rubric
from mcpenv.rewards.rubrics.episode_rubric import EpisodeRubric
from mcpenv.rewards.rubrics.rubric import is_async
from mcpenv.rewards.verifiers import Evidence, Verdict, check, of_verdict, run
from mcpenv.tracing import part
from mcpenv.worlds import Tree, capture
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import Reward, ToolOutcome, Trajectory, reward_of, total
from mcpenv_client.types.tasks import Task

from .concurrency.threads import THREADS
from .current_step import NOT_SCORED, Step
from .snapshots.snapshot import HeldEpisode

if TYPE_CHECKING:
    from .instance import Instance

VERIFIED = "verified"
"""The component of the reward that verification gives."""


_REWARDS = (Reward, float, int, type(None))
"""The types of most scores, none of which is awaitable."""


class Scoring:
    """The scoring of one episode. The caller holds the environment's lock.

    Attributes:
        ended: True if scoring of the end has begun. No further step may begin.
        before: the world after the reset; None without a world, or if nothing verifies the end.
        problems: the reasons why the end failed verification, as sentences.
    """

    __slots__ = (
        "_env",
        "_hooks",
        "_rubric",
        "_task",
        "_traces",
        "_user_code",
        "_verifies",
        "before",
        "ended",
        "problems",
    )

    def __init__(self, at: Instance) -> None:
        # `close` may empty the instance while its end is scored.
        self._user_code, self._env, self._hooks = at.user_code, at.env, at.hooks
        self._rubric: EpisodeRubric | None = None
        self._task: Task | None = None
        self._verifies = False
        self._traces = at.traces
        self.before: Tree | None = None
        self.ended = False
        self.problems: list[str] = []

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
                        scored = await _awaited(self._env.score(step.call, outcome))
                else:
                    scored = self._env.score(step.call, outcome)
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

    async def of_end(self, trajectory: Trajectory) -> Reward | None:
        """Return the reward of the end, by rubric and verifier.

        Args:
            trajectory: the whole episode. Its ``verified`` is set here.

        Raises:
            ExecutionError, OperationTimeout: the rubric or the verifier failed.
        """
        # First, because the end is scored once: a failure must not lead to another try.
        self.ended = True
        if self._verifies:
            trajectory.verified = await self._verify()
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
        if isinstance(rubric, type):
            name = rubric.__name__
            raise TypeError(f"rubric is the class {name}; it is a Rubric, such as {name}(...), or None")
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
        return None if world is None else capture(world)

    async def _verify(self) -> Reward | None:
        with part("verify") if self._traces else nullcontext():
            reward: Reward | None = await self._user_code.stage("verify", self._ask_verifier)
        return None if reward is None else Reward(reward.value, _named(reward))

    async def _ask_verifier(self) -> Reward | None:
        spec = self._spec
        evidence = await self._user_code.call(self._evidence)
        self.problems = evidence.said
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

    def _evidence(self) -> Evidence:
        world = self._env.world
        after = None if world is None else capture(world)
        return Evidence(self._task, self.before, after, named=isinstance(world, Mapping))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _worth(found: Any, evidence: Evidence) -> Reward | None:
    """Convert the result of an environment's own `verify` to a reward. Keep the sentences of a verdict."""
    if isinstance(found, Verdict):
        evidence.said.extend(found.problems)
    if isinstance(found, bool | Verdict):
        return of_verdict(bool(found), evidence.task)
    return reward_of(found)


def _named(reward: Reward) -> dict[str, float]:
    parts: dict[str, Any] = {f"{VERIFIED}/{name}": value for name, value in reward.components.items()}
    return {VERIFIED: reward.value, **parts}
