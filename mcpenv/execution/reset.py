"""The reset of an instance: open an episode, and run the user's reset once. The caller holds the lock."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

from mcpenv import tracing
from mcpenv.failures import environment_failure
from mcpenv.tasks.assignment import Assignment
from mcpenv_client.types.observations import Observation

from .ending import hand_over
from .episode import Episode
from .observer import Observer
from .scoring import Scoring
from .sink import EpisodeSink
from .user_code import UserCode, UserEnvironment


class Instance(Protocol):
    """The environment instance to reset."""

    env: UserEnvironment
    user_code: UserCode
    episode: Episode
    scoring: Scoring | None
    sink: EpisodeSink | None
    observer: Observer | None
    traces: bool


async def reset(
    instance: Instance, assigned: Assignment, episode_id: str | None, timeout_s: float | None, *, implicit: bool
) -> Observation:
    """Begin an episode, and return its first observation.

    Args:
        implicit: a step has begun it, not a reset.

    Raises:
        InvalidMessage: an option that the environment does not take.
        ExecutionError: the user's reset raised; the environment is NEW.
        OperationTimeout: it passed its deadline.
    """
    instance.env._reset_options.check(assigned.options, tasks=instance.env.tasks is not None)
    hand_over(instance, "reset")
    if instance.sink is not None and assigned.seed is None and instance.env._reset_options.takes_seed:
        # A recorded episode can be replayed only if its seed is known.
        assigned = replace(assigned, seed=secrets.randbits(31))
    instance.episode.open(assigned, episode_id, implicit)
    instance.traces = tracing.enabled()
    completed = False
    try:
        with tracing.part("reset") if instance.traces else nullcontext():
            observation = await run_reset(instance, assigned, episode_id, timeout_s)
        completed = True
    finally:
        if not completed and instance.observer is not None:
            instance.observer.reset_over(failed=True)
    if instance.episode.orchestrated:
        scoring = Scoring(instance.user_code, instance.env)
        await scoring.begin(assigned.task, timeout_s)
        instance.scoring = scoring
    if instance.observer is not None:
        instance.observer.reset_over(failed=False)
    return instance.episode.opened(observation)


async def run_reset(
    instance: Instance, assigned: Assignment, episode_id: str | None, timeout_s: float | None
) -> Observation:
    """Run the user's reset once, for the episode that was opened.

    Raises:
        ExecutionError: it raised, or returned no observation.
        OperationTimeout: it passed its deadline.
    """
    seed, options = assigned.seed, assigned.options
    instance.scoring, instance.episode.reset_number = None, -1
    observation = await instance.user_code.stage(
        "reset",
        lambda: instance.user_code.call(instance.env._author_reset(seed, episode_id, options)),
        timeout_s,
    )
    if observation is None:
        observation = Observation()
    if not isinstance(observation, Observation):
        wrong = TypeError(f"reset returned a {type(observation).__name__}; return an Observation or None")
        raise environment_failure("reset", wrong) from wrong
    instance.episode.reset_number = instance.episode.number
    return observation


__all__ = ["reset", "run_reset"]
