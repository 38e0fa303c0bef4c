"""Reset an instance: open an episode, and run the user's reset once. The caller holds the lock."""

from __future__ import annotations

import functools
import secrets
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from mcpenv import tracing
from mcpenv.failures import environment_failure
from mcpenv.tasks.assignment import Assignment
from mcpenv_client.types.observations import Observation

from .ending import hand_over
from .hooks import check_setting
from .instance import Instance
from .scoring import Scoring


async def reset(
    instance: Instance, assigned: Assignment, episode_id: str | None, timeout_s: float | None, *, implicit: bool
) -> Observation:
    """Begin an episode, and return its first observation.

    Args:
        implicit: True if a step began it, not a reset.

    Raises:
        ExecutionError: the user's reset raised; the environment is NEW.
        OperationTimeout: the reset passed its deadline.
    """
    instance.tools.check()
    # Before `open`, which replaces the trajectory.
    hand_over(instance, "reset")
    if instance.sink is not None and assigned.seed is None and instance.hooks.options.takes_seed:
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
    # After the user's reset, which may set `rubric` and `world`.
    if instance.episode.orchestrated:
        scoring = Scoring(instance)
        await scoring.begin(assigned.task, timeout_s)
        instance.scoring = scoring
    if instance.observer is not None:
        instance.observer.reset_over(failed=False)
    return instance.episode.opened(observation)


async def run_reset(
    instance: Instance, assigned: Assignment, episode_id: str | None, timeout_s: float | None
) -> Observation:
    """Run the user's reset once, if there is one, for the episode that was opened.

    Raises:
        ExecutionError: the reset raised or returned no observation, or a setting of the environment is wrong.
        OperationTimeout: the reset passed its deadline.
    """
    hooks, user_code = instance.hooks, instance.user_code
    # If the reset fails, no snapshot must match the state that it leaves.
    instance.scoring, instance.episode.reset_number = None, -1
    observation: Any = None
    if hooks.reset is not None:
        own_seed = not instance.played_by_agents
        arguments = hooks.options.arguments(assigned.seed, episode_id, assigned.options, own_seed=own_seed)
        body = functools.partial(hooks.reset, instance.env, **arguments)
        at_least = instance.env.RESET_TIMEOUT_S
        observation = await user_code.stage("reset", lambda: user_code.call(body), timeout_s, at_least)
    if observation is None:
        observation = Observation()
    if not isinstance(observation, Observation):
        wrong = TypeError(f"reset returned a {type(observation).__name__}; return an Observation or None")
        raise environment_failure("reset", wrong) from wrong
    try:
        for name in ("max_steps", "rubric"):  # the constructor and the reset may have set them
            if (value := getattr(instance.env, name)) is not None:
                check_setting(type(instance.env).__name__, name, value)
    except (TypeError, ValueError) as error:
        raise environment_failure("reset", error) from error
    instance.episode.reset_number = instance.episode.number
    return observation
