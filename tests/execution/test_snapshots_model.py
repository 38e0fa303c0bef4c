"""Random histories of steps, resets, snapshots, restores and forks agree with a model that is nothing but functions."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)
from snapshot_worlds import Plain

from mcpenv import EpisodeDone
from mcpenv.execution.snapshots import Snapshot

TARGET = 25


@cache
def drawn(seed: int) -> list[list[float]]:
    """All that an episode of this seed can draw."""
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    return [[float(rng.randrange(1000)), float(generator.random())] for _ in range(200)]


@dataclass(frozen=True)
class Episode:
    """One episode so far, as values that do not change."""

    seed: int
    count: int
    learnt: bool
    draws: int = 0
    kept: tuple[int, ...] = ()
    late: str | None = None
    calls: tuple[str, ...] = ()
    total: float = 0.0
    done: bool = False

    def after(self, name: str, value: int) -> tuple[Episode, Any, float]:
        """The episode after a call, what the tool answers (None: it fails), and the reward."""
        then, ended = self, 0.0
        answer: Any = None
        if name == "add":
            then = replace(self, count=self.count + value)
            answer = then.count
            if then.count >= TARGET:
                then, ended = replace(then, done=True), 10.0
        elif name == "draw":
            answer, then = drawn(self.seed)[self.draws], replace(self, draws=self.draws + 1)
        elif name == "keep":
            then = replace(self, kept=(*self.kept, value))
            answer = list(then.kept)
        elif name == "look":
            numbers = [int(number) for number, _ in drawn(self.seed)[: self.draws]]
            answer = {"count": self.count, "numbers": numbers, "late": self.late}
        elif not self.learnt:
            then, answer = replace(self, learnt=True, late="late"), "learnt"
        streak = float(self.calls[-1:] == ("add",) and name == "add")
        reward = streak + ended + (0.25 if name == "look" else 0.0)
        then = replace(then, calls=(*self.calls, name))
        if then.done:
            reward += 0.5 * len(then.calls)
        return replace(then, total=then.total + reward), answer, reward


class Histories(RuleBasedStateMachine):
    """Several instances of one environment, and snapshots of all of them."""

    envs: Bundle[int] = Bundle("envs")
    snapshots: Bundle[tuple[Snapshot, Episode]] = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.instances: list[Plain] = []
        self.episodes: list[Episode] = []

    def _added(self, env: Plain, episode: Episode) -> int:
        self.instances.append(env)
        self.episodes.append(episode)
        return len(self.instances) - 1

    @initialize(target=envs, seed=st.integers(0, 3))
    def first(self, seed: int) -> int:
        env = Plain(TARGET)
        env.reset(seed=seed)
        return self._added(env, Episode(seed, 0, learnt=False))

    @rule(which=envs, seed=st.integers(0, 3), start=st.integers(0, 20))
    def reset(self, which: int, seed: int, start: int) -> None:
        self.instances[which].reset(seed=seed, start=start)
        before = self.episodes[which]
        # Neither the tool that it has no more nor the attribute is the reset's to bring back.
        self.episodes[which] = Episode(seed, start, before.learnt, late=before.late)

    @rule(which=envs, name=st.sampled_from(["add", "add", "draw", "keep", "look", "learn"]), value=st.integers(0, 9))
    def step(self, which: int, name: str, value: int) -> None:
        env, episode = self.instances[which], self.episodes[which]
        arguments = {"add": {"by": value}, "keep": {"value": value}}.get(name, {})
        if episode.done:
            with pytest.raises(EpisodeDone):
                env.call_tool(name, arguments)
            return
        observation = env.call_tool(name, arguments)
        self.episodes[which], answer, reward = episode.after(name, value)
        if answer is None:
            assert observation.error is not None and observation.error.error_type == "tool_not_found"
        else:
            assert observation.error is None and observation.result.data == answer  # type: ignore[attr-defined]
        assert observation.reward == pytest.approx(reward)
        self._agrees(which)

    @rule(target=snapshots, which=envs)
    def snapshot(self, which: int) -> tuple[Snapshot, Episode]:
        held = self.instances[which].snapshot()
        self._agrees(which)
        return held, self.episodes[which]

    @rule(which=envs, held=snapshots)
    def restore(self, which: int, held: tuple[Snapshot, Episode]) -> None:
        observation = self.instances[which].restore(held[0])
        self.episodes[which] = held[1]
        assert observation.done is held[1].done
        self._agrees(which)

    @rule(target=envs, held=snapshots)
    def fork(self, held: tuple[Snapshot, Episode]) -> Any:
        if len(self.instances) == 6:
            return multiple()
        which = self._added(self.instances[0].fork(held[0]), held[1])
        self._agrees(which)
        return which

    @rule(target=envs, parent=envs)
    def fork_here(self, parent: int) -> Any:
        if len(self.instances) == 6:
            return multiple()
        which = self._added(self.instances[parent].fork(), self.episodes[parent])
        self._agrees(which)
        return which

    def _agrees(self, which: int) -> None:
        env, episode = self.instances[which], self.episodes[which]
        trajectory = env.trajectory
        assert trajectory is not None
        assert env.step_count == len(episode.calls)
        assert [record.call.name for record in trajectory.steps] == list(episode.calls)
        assert trajectory.total_reward == pytest.approx(episode.total)
        assert trajectory.terminated is episode.done
        assert ("learn" in {tool.name for tool in env.list_tools()}) is not episode.learnt
        assert (env.count, getattr(env, "late", None)) == (episode.count, episode.late)

    def teardown(self) -> None:
        for env in self.instances:
            env.close()


@pytest.mark.hypothesis
def test_any_history_agrees_with_the_model() -> None:
    often = settings(
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(Histories, settings=often)
