"""The simulation shim: a step is a tool call, a listing, or an action of the environment's own."""

from __future__ import annotations

from mcpenv_client.types.actions import Action, CallToolAction, ListToolsAction
from mcpenv_client.types.observations import CallToolObservation, ListToolsObservation, Observation
from mcpenv_client.types.records import Plane, StepRecord

from .execution import Execution
from .snapshots import Snapshot


async def step(
    execution: Execution, action: Action, *, plane: Plane, principal: str | None = None, timeout_s: float | None = None
) -> Observation:
    """Take ``action``; the observation carries reward, done and info.

    Raises:
        EpisodeDone, ExecutionError, OperationTimeout, SessionLost: as the core does.
    """
    if isinstance(action, CallToolAction):
        record = await execution.call_tool(
            action.tool_name, action.arguments, plane=plane, principal=principal, timeout_s=timeout_s
        )
        return observation_of(execution, record)
    if isinstance(action, ListToolsAction):
        return ListToolsObservation(tools=await execution.list_tools())
    record, _ = await execution.act(action, plane=plane, principal=principal, timeout_s=timeout_s)
    return observation_of(execution, record)


async def restore(execution: Execution, snapshot: Snapshot, timeout_s: float | None = None) -> Observation:
    """Continue from a snapshot. Return the last observation of its episode.

    Raises:
        NotSupported, Misuse, ExecutionError, OperationTimeout, SessionLost: as the core does.
    """
    await execution.restore(snapshot, timeout_s=timeout_s)
    return latest(execution)


def latest(execution: Execution) -> Observation:
    """Return the last observation of the running episode, as ``wait`` answers it."""
    trajectory, first = execution.episode.trajectory, execution.episode.first
    if trajectory is None:
        return Observation()
    if execution.episode.last is not None:
        return execution.episode.last
    if trajectory.steps:
        observation: Observation = observation_of(execution, trajectory.steps[-1])
    else:
        observation = first if first is not None else Observation(info=execution.episode.info(None))
    info = dict(observation.info)
    execution.episode.add_status(info)
    # Another step than the last may have ended the episode (tools may run together), or none.
    return observation.model_copy(
        update={"terminated": trajectory.terminated, "truncated": trajectory.truncated, "info": info}
    )


def observation_of(execution: Execution, record: StepRecord) -> Observation:
    """Return the observation of a step."""
    own = record.outcome.value
    if isinstance(own, Observation) and record.outcome.result is None:
        return _own_observation(execution, record, own)
    return _tool_observation(execution, record)


def _own_observation(execution: Execution, record: StepRecord, observation: Observation) -> Observation:
    return observation.model_copy(
        update={
            "reward": None if record.reward is None else record.reward.value,
            "terminated": record.terminated,
            "truncated": record.truncated,
            "info": {**observation.info, **execution.episode.info(record)},
        }
    )


def _tool_observation(execution: Execution, record: StepRecord) -> CallToolObservation:
    return CallToolObservation.model_construct(
        reward=None if record.reward is None else record.reward.value,
        terminated=record.terminated,
        truncated=record.truncated,
        metadata={},
        info=execution.episode.info(record),
        tool_name=record.call.name,
        result=record.outcome.result,
        error=record.outcome.error,
    )
