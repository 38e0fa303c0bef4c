"""The observations of an episode for its orchestrator, made from the records of its steps: as objects and as data."""

from __future__ import annotations

from typing import Any, NamedTuple

from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.records import StepRecord
from mcpenv_client.types.status import COMPLETED, COMPLETED_DATA
from mcpenv_client.wire.protocol import EpisodeState, call_data

from .episode import Episode


def info_of(episode: Episode, record: StepRecord | None) -> dict[str, Any]:
    """Return the framework's part of the observation of a step; empty where there are no episodes.

    Args:
        record: the step; None for the reset.
    """
    trajectory = episode.trajectory
    if not episode.orchestrated or trajectory is None:
        return {}
    info: dict[str, Any] = {"episode_id": trajectory.episode_id}
    if episode.state is EpisodeState.DONE:
        episode.add_status(info)
    if record is not None:
        info["status"] = {**COMPLETED_DATA} if record.status is COMPLETED else record.status.to_plain()
        if record.fault is not None and record.done:
            info["fault"] = record.fault  # the worth is unknown
        else:
            info["return"] = trajectory.total_reward if episode.scored else None
        if record.reward is not None and record.reward.components:
            info["reward"] = dict(record.reward.components)
        if record.reason is not None:
            info["reason"] = record.reason
        if trajectory.implicit_reset and record.call.step == 1:
            info["reset"] = "implicit"
    return info


class ToolCalled(NamedTuple):
    """The step of a tool call.

    Attributes:
        record: the step.
        info: `info_of` it.
    """

    record: StepRecord
    info: dict[str, Any]


def step_data(result: ToolCalled) -> dict[str, Any]:
    """Return the ``data`` of the observation frame of a step: plain JSON data, without building an observation."""
    record, info = result
    outcome, reward = record.outcome, record.reward
    return call_data(
        record.call.name,
        outcome.result_data(),
        outcome.error,
        None if reward is None else reward.value,
        record,
        info,
    )


def observation_of(episode: Episode, record: StepRecord) -> Observation:
    """Return the observation of a step, with its reward, end and info."""
    outcome, info = record.outcome, info_of(episode, record)
    reward = None if record.reward is None else record.reward.value
    own = outcome.value
    if isinstance(own, Observation) and outcome.result is None:
        return own.model_copy(
            update={
                "reward": reward,
                "terminated": record.terminated,
                "truncated": record.truncated,
                "info": {**own.info, **info},
            }
        )
    return CallToolObservation.model_construct(
        reward=reward,
        terminated=record.terminated,
        truncated=record.truncated,
        metadata={},
        info=info,
        tool_name=record.call.name,
        result=outcome.result,
        error=outcome.error,
    )


def latest(episode: Episode) -> Observation:
    """Return the last observation of the running episode, as ``wait`` answers it."""
    trajectory, first = episode.trajectory, episode.first
    if trajectory is None:
        return Observation()
    if episode.last is not None:
        return episode.last
    if trajectory.steps:
        observation = observation_of(episode, trajectory.steps[-1])
    else:
        observation = first if first is not None else Observation(info=info_of(episode, None))
    info = dict(observation.info)
    episode.add_status(info)
    # Another step than the last may have ended the episode (tools may run together), or none.
    return observation.model_copy(
        update={"terminated": trajectory.terminated, "truncated": trajectory.truncated, "info": info}
    )
