"""End an episode: apply ``finish``, score the end, and pass the episode to the sink and the observer."""

from __future__ import annotations

import time
from typing import Any

from mcpenv.errors import Misuse
from mcpenv.failures import environment_failure
from mcpenv_client.errors import ErrorCode, WireError, status_of_code
from mcpenv_client.types.records import Reward, reward_of
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.texts import well_formed
from mcpenv_client.wire.protocol import EpisodeState, Event, next_state

from .current_step import Step, current
from .episode import Finish
from .instance import Instance


async def end(instance: Instance, truncated: bool, reason: str | None) -> None:
    """End the episode because the agent has stopped, and score the end. The caller holds the lock.

    Raises:
        InvalidMessage: there is no episode yet.
        ExecutionError: scoring the end failed; the episode is over regardless.
    """
    episode, scoring = instance.episode, instance.scoring
    reason = None if reason is None else well_formed(reason)
    if episode.state is EpisodeState.DONE:
        return  # the step that held the lock has ended it
    next_state(episode.state, Event.END)
    trajectory = episode.trajectory
    assert trajectory is not None
    reward: Reward | None = None
    if scoring is not None and scoring.owes_end and not instance.user_code.abandoned:
        ended = episode.as_ended(truncated, reason)
        # The values for a cancellation, which the `except` below does not see.
        code, status = ErrorCode.CANCELLED.value, Status(StatusCode.CANCELLED, Stage.SCORE, True)
        scored, clock = False, time.perf_counter()
        try:
            reward = await scoring.of_end(ended)
            scored = True
        except WireError as error:
            code, status = error.code.value, error.status or status_of_code(error.code.value)
            raise
        finally:
            trajectory.end_scoring_s = time.perf_counter() - clock
            if not scored:
                episode.end(None, truncated, reason, code, status)
        episode.take_verification(ended)
    episode.end(reward, truncated, reason)


def finish(instance: Instance, reward: Any, truncated: bool, reason: str | None) -> None:
    """Implement `MCPEnvironment.finish`.

    Raises:
        Misuse: outside a step and a reset of this environment.
        ExecutionError: the reward is not a finite number; the step fails with it, even if the tool catches it.
    """
    now = current.get()
    step = now if isinstance(now, Step) and now.owner is instance else None
    in_reset = now is instance and instance.episode.state is EpisodeState.NEW
    if (step is None or step.settled) and not in_reset:
        raise Misuse("finish() has a meaning only inside a tool, score, act or reset of its environment")
    try:
        said = Finish(reward_of(reward), truncated, None if reason is None else well_formed(reason))
    except (TypeError, ValueError) as error:
        failure = environment_failure("finish", error)
        failure.__cause__ = error
        if step is not None:
            step.fault = step.fault or failure  # the tool may catch the exception
        raise failure from error
    if step is not None:
        step.finish = step.finish or said
    else:
        instance.episode.reset_finish = instance.episode.reset_finish or said


def hand_over(instance: Instance, reason: str | None = None) -> None:
    """Pass the episode to the sink and the observer, once, if it is over.

    Args:
        reason: the reason for abandoning it, if it has not ended.
    """
    episode = instance.episode
    trajectory = episode.trajectory
    if reason is not None:
        episode.give_up(reason)
    if trajectory is None or episode.handed_over or not episode.orchestrated:
        return
    if instance.sink is None and instance.observer is None:
        return
    if episode.state is EpisodeState.NEW:
        return  # its reset failed: it never began
    episode.handed_over = True
    if instance.sink is not None:
        instance.sink.episode_over(trajectory, episode.outputs.all())
    if instance.observer is not None:
        instance.observer.episode_over(trajectory)
