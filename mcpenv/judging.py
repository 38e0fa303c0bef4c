"""Judging: what an episode's steps and its end are worth beside `score`, by its rubric and its verifier."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mcpenv_client.records import Reward, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.tasks import Task

from .author import Author, AuthorCode
from .failures import environment_failure
from .rewards import total
from .rubrics import Rubric
from .rubrics.rubric import is_async
from .rubrics.scoring import EpisodeRubric
from .snapshots.snapshot import HeldEpisode
from .verification import Verification
from .worlds import Tree


class Judging:
    """One episode's rubric and verifier. Both are asked where the author's code runs, in turn with the steps.

    Attributes:
        ended: the end is being judged, or has been: no step begins any more.
        asks_steps: the rubric is asked about steps.
    """

    __slots__ = ("_author", "_env", "_scoring", "_verification", "asks_steps", "ended")

    def __init__(self, author: AuthorCode, env: Author) -> None:
        self._author = author
        self._env = env
        self._scoring: EpisodeRubric | None = None
        self._verification: Verification | None = None
        self.ended = False
        self.asks_steps = False

    async def begin(self, task: Task | None, timeout_s: float | None) -> None:
        """Begin an episode, after the author's reset.

        Raises:
            ExecutionError: the rubric's constructor raised, or the task's verifier does not fit.
            OperationTimeout: one of them took too long.
        """
        await self._begin_scoring(timeout_s)
        self._verification = await Verification.begin(self._author, self._env, task, timeout_s)

    async def resume(self, held: HeldEpisode, timeout_s: float | None) -> None:
        """Go on with an episode that was held; what its rubric remembered is put into `rubrics`.

        Raises:
            ExecutionError: the rubric's constructor raised.
            OperationTimeout: it took too long.
        """
        await self._begin_scoring(timeout_s)
        if held.verified:
            self._verification = Verification(self._author, self._env, held.trajectory.task, copy.deepcopy(held.before))

    @property
    def rubrics(self) -> list[Rubric]:
        """The episode's rubric and all that it is made of; empty without one."""
        return [] if self._scoring is None else self._scoring.rubrics

    @property
    def verifies(self) -> bool:
        """Whether the end will be verified."""
        return self._verification is not None

    @property
    def said(self) -> list[str]:
        """Why the end was verified to be worth no more, as sentences; for those who try tasks out."""
        return [] if self._verification is None else self._verification.said

    @property
    def before(self) -> Tree | None:
        """The world as the reset left it, if it is to be verified what became of it."""
        return None if self._verification is None else self._verification.before

    async def of_step(self, call: ToolCall, outcome: ToolOutcome) -> Reward | None:
        """What the rubric says of a step.

        Raises:
            ExecutionError, OperationTimeout: it failed.
        """
        scoring = self._scoring
        assert scoring is not None
        return await self._ask(scoring.of_step, call, outcome)

    @property
    def owes_end(self) -> bool:
        """Whether somebody is still to be asked about the end, which is done once."""
        return not (self.ended or (self._scoring is None and self._verification is None))

    @property
    def asks_end(self) -> bool:
        """The same, where nothing that could not be stopped still runs."""
        return self.owes_end and not self._author.stuck

    def begin_end(self) -> None:
        """From now on the episode ends. Tools that run together may both end it."""
        self.ended = True

    async def of_end(self, trajectory: Trajectory) -> Reward | None:
        """What rubric and verifier say of an episode that is over.

        Args:
            trajectory: as it will be; ``verified`` is filled in.

        Raises:
            ExecutionError, OperationTimeout: one of them failed.
        """
        self.ended = True
        verification, scoring = self._verification, self._scoring
        if verification is not None:
            trajectory.verified = await verification.result()
        if scoring is None:
            return trajectory.verified
        reward = await self._ask(scoring.of_trajectory, trajectory)
        return reward if scoring.has_verified else self.total(reward, trajectory.verified)

    @staticmethod
    def total(*parts: Reward | None) -> Reward | None:
        """Their sum.

        Raises:
            ExecutionError: it is infinite.
        """
        try:
            return total(*parts)
        except ValueError as error:
            raise environment_failure("rubric", error) from error

    async def _begin_scoring(self, timeout_s: float | None) -> None:
        if self._env.rubric is not None:
            # Its constructor is the author's code, which may be slow.
            self._scoring = await self._author.stage("rubric", lambda: self._author.call(self._new_scoring), timeout_s)
            self.asks_steps = self._scoring.scores_steps

    def _new_scoring(self) -> EpisodeRubric:
        rubric = self._env.rubric
        if isinstance(rubric, type):
            name = rubric.__name__
            raise TypeError(f"rubric is the class {name}; it is a Rubric, such as {name}(...), or None")
        if not isinstance(rubric, Rubric):
            raise TypeError(f"rubric is a {type(rubric).__name__}; it is a Rubric or None")
        return EpisodeRubric(rubric, self._env)

    async def _ask(self, of: Callable[..., Any], *about: Any) -> Reward | None:
        reward: Reward | None = await self._author.stage("rubric", lambda: of(*about, self._call))
        return reward

    async def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await (fn(*args) if is_async(fn) else self._author.hand_over(None, fn, *args))
