"""One episode's copy of a rubric, which scores its steps and its end."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from mcpenv_client.types.records import Reward, ToolCall, ToolOutcome, Trajectory, reward_of

from .composites import Composite, Moment
from .rubric import Rubric, Scored, overrides
from .verified import Verified

Invoke = Callable[..., Awaitable[Any]]
"""Calls a function with its arguments where it belongs: a sync one in a worker thread, on a server."""


class EpisodeRubric:
    """The copy of a rubric that scores one episode.

    Attributes:
        scores_steps: True if some part scores steps. If none does, there is nothing to run after a step.
        has_verified: True if `Verified` is among its parts.

    Raises:
        TypeError: a part would never score.
    """

    __slots__ = ("_root", "has_verified", "scores_steps")

    def __init__(self, rubric: Rubric, env: Any) -> None:
        refuse_silent(rubric)
        self._root = rubric.fresh()
        self.scores_steps = False
        self.has_verified = False
        for each in self._root._all():
            each.__dict__["_env"] = env
            if isinstance(each, Composite):
                continue
            self.has_verified = self.has_verified or isinstance(each, Verified)
            self.scores_steps = self.scores_steps or overrides(each, "score")

    @property
    def rubrics(self) -> list[Rubric]:
        """The episode's copy and all of its parts, recursively."""
        return list(self._root._all())

    async def of_step(self, call: ToolCall, outcome: ToolOutcome, invoke: Invoke) -> Reward | None:
        """Return the reward of a step.

        Raises:
            Exception: any exception of a rubric; TypeError and ValueError for a value that is not a finite number.
        """
        return await self._of(Moment(call, outcome, None, call.step), invoke)

    async def of_trajectory(self, trajectory: Trajectory, invoke: Invoke) -> Reward | None:
        """Return the reward of an episode that is over.

        Raises:
            Exception: any exception of a rubric; TypeError and ValueError for a value that is not a finite number.
        """
        last = trajectory.steps[-1].call if trajectory.steps else None
        return await self._of(Moment(last, None, trajectory, trajectory.dropped + len(trajectory.steps)), invoke)

    async def _of(self, moment: Moment, invoke: Invoke) -> Reward | None:
        # A composite at the top names no component: its value is the reward itself.
        path = "" if isinstance(self._root, Composite) and self._root._called is None else self._root.component
        return await self._ask(self._root, path, moment, invoke)

    async def _ask(self, rubric: Rubric, path: str, moment: Moment, invoke: Invoke) -> Reward | None:
        clock = time.perf_counter()
        try:
            if isinstance(rubric, Composite):
                reward = await self._combined(rubric, path, moment, invoke)
            else:
                reward = await self._leaf(rubric, path, moment, invoke)
        except Exception as error:
            error.add_note(f"in the rubric {path or type(rubric).__name__!r}")
            await self._call_hooks(rubric, path, moment, None, error, clock, invoke)
            raise
        await self._call_hooks(rubric, path, moment, reward, None, clock, invoke)
        return reward

    async def _leaf(self, rubric: Rubric, path: str, moment: Moment, invoke: Invoke) -> Reward | None:
        about: tuple[Any, ...]
        if moment.trajectory is None:
            method, about = "score", (moment.call, moment.outcome)
        else:
            method, about = "score_trajectory", (moment.trajectory,)
        if not overrides(rubric, method):
            return None
        reward = reward_of(_plain(await invoke(getattr(rubric, method), *about), rubric, method))
        if reward is None:
            return None
        return Reward(reward.value, {path: reward.value, **{f"{path}/{k}": v for k, v in reward.components.items()}})

    async def _combined(self, rubric: Composite, path: str, moment: Moment, invoke: Invoke) -> Reward | None:
        components: dict[str, float] = {}

        async def ask(name: str) -> Reward | None:
            reward = await self._ask(rubric.parts[name], f"{path}/{name}" if path else name, moment, invoke)
            if reward is not None:
                components.update(reward.components)
            return reward

        value = await rubric.combine(ask, moment)
        if value is None:
            return None
        return Reward(value, {path: value, **components} if path else components)

    async def _call_hooks(
        self,
        rubric: Rubric,
        path: str,
        moment: Moment,
        reward: Reward | None,
        error: Exception | None,
        clock: float,
        invoke: Invoke,
    ) -> None:
        if rubric._hooks:
            scored = Scored(path, moment.call, moment.trajectory, reward, error, time.perf_counter() - clock)
            for hook in rubric._hooks:
                _plain(await invoke(hook, scored), rubric, "hook")


def refuse_silent(rubric: Rubric) -> None:
    """Raise if a part of a rubric overrides nothing. Otherwise a misspelt method would silently score nothing.

    Raises:
        TypeError: naming the part's class.
    """
    for each in rubric._all():
        if not isinstance(each, Composite) and not (overrides(each, "score") or overrides(each, "score_trajectory")):
            raise TypeError(f"{type(each).__name__} never scores: it overrides neither score nor score_trajectory")


def _plain(value: Any, rubric: Rubric, what: str) -> Any:
    """Return the result of a function.

    Raises:
        TypeError: the result is an awaitable of a function that is not declared async, so that its thread is unknown.
    """
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(f"{type(rubric).__name__}: {what} gave an awaitable; declare it `async def`")
